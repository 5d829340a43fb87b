// Read-only files in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "text/files/mapped_ranges.h"

namespace zeroplan {

// The bytes of a regular file, read-only. Small files are read into memory: a mapping costs a page
// and one of the process's 65,530 map slots, which a folder of sources would use up.
//
// A mapped file must not shrink while it is open: touching what was cut off ends the process with a
// message that names the file (mapped_ranges.h).
class MappedFile {
 public:
  // Throws Error(kUsage) naming the path if it cannot be opened, is no regular file, or cannot be
  // mapped.
  static MappedFile Open(const std::filesystem::path& path);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Valid until the object is destroyed or assigned to; moving keeps the address.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  uint64_t size() const { return size_; }

  // Asks for the bytes to be read from disk now, without waiting; cut at the file's end.
  void Prefetch(uint64_t offset, uint64_t bytes) const noexcept;
  // Takes whole pages of the range out of this process's memory: they may stay in the system's
  // cache, and come back when they are touched. What reads a file larger than the memory that was
  // planned for it calls this behind itself.
  void DropResident(uint64_t offset, uint64_t bytes) const noexcept;

 private:
  void Release() noexcept;
  void Advise(uint64_t first, uint64_t last, int advice) const noexcept;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  MappedRange range_;                  // of what is mapped
  std::unique_ptr<std::byte[]> copy_;  // set for small files: then nothing is mapped
};

}  // namespace zeroplan
