// Which file lies where in memory, for the one who finds out that it no longer does: touching what
// was cut off a mapped file, or what its disk cannot read, raises SIGBUS.
#pragma once

#include <cstddef>
#include <filesystem>

namespace zeroplan {

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

}  // namespace zeroplan
