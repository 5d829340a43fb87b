// Read-only files in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace zeroplan {

// Finds the file that is mapped at an address, for the handler of SIGBUS, which is raised by access
// to a truncated part of a mapped file, or to bytes that its disk cannot read.
//
// Registers a range of memory that a file is mapped to during its lifetime. The first one installs
// a handler for SIGBUS (unless the process has one): in a registered range it prints the file's
// name on stderr and ends the process with exit code 4; elsewhere the signal has its default
// effect.
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

// The bytes of a regular file, read-only. Small files are read into memory, because a mapping costs
// a page and one of the process's 65,530 map slots, which a folder of sources would use up.
//
// A mapped file must not shrink while it is open: access to a truncated part ends the process with
// a message that names the file (MappedRange).
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

  // Starts reading the bytes from disk, without waiting; cut at the file's end.
  void Prefetch(uint64_t offset, uint64_t bytes) const noexcept;
  // Drops whole pages of the range from this process's memory: they may stay in the system's cache,
  // and return on access. Readers of a file larger than the memory planned for it call this for the
  // part they have read.
  void DropResident(uint64_t offset, uint64_t bytes) const noexcept;

 private:
  void Release() noexcept;
  void Advise(uint64_t first, uint64_t last, int advice) const noexcept;

  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  MappedRange range_;                  // the mapped range
  std::unique_ptr<std::byte[]> copy_;  // set for small files, which are not mapped
};

// The 128-bit XXH3 digest of bytes, at the memory's speed: detects damage and names contents, but
// not safe against malice.
using Checksum = std::array<uint64_t, 2>;

class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;

  void Add(std::span<const std::byte> bytes);
  // Adds bytes [offset, offset + bytes) of a file, and drops their pages afterwards.
  void Add(const MappedFile& file, uint64_t offset, uint64_t bytes);
  // The digest of all bytes added so far.
  Checksum Get() const;

 private:
  XXH3_state_s* state_;
};

}  // namespace zeroplan
