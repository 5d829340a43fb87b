// Read-only files in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace zeroplan {

// Which file lies where in memory, for the one who finds out that it no longer does: touching what
// was cut off a mapped file, or what its disk cannot read, raises SIGBUS.
//
// A range of memory that a file is mapped to, while it lives. With the first one the process gets a
// handler for SIGBUS (unless it has one): in such a range it names the file on stderr and ends the
// process with exit code 4; elsewhere the signal does what it does by default.
class MappedRange {
 public:
  MappedRange() = default;
  MappedRange(const std::byte* data, size_t bytes, const std::filesystem::path& path);
  ~MappedRange();
  MappedRange(MappedRange&& other) noexcept;
  MappedRange& operator=(MappedRange&& other) noexcept;
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

 private:
  struct Node;
  friend struct MappedRanges;
  Node* node_ = nullptr;
};

// The bytes of a regular file, read-only. Small files are read into memory: a mapping costs a page
// and one of the process's 65,530 map slots, which a folder of sources would use up.
//
// A mapped file must not shrink while it is open: touching what was cut off ends the process with a
// message that names the file (MappedRange).
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

// 128 bits of XXH3 over bytes, at the memory's speed: against damage and for names of contents, not
// against malice.
using Checksum = std::array<uint64_t, 2>;

class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;

  void Add(std::span<const std::byte> bytes);
  // Bytes [offset, offset + bytes) of a file, which are let go behind it.
  void Add(const MappedFile& file, uint64_t offset, uint64_t bytes);
  // Of what was added so far.
  Checksum Get() const;

 private:
  XXH3_state_s* state_;
};

}  // namespace zeroplan
