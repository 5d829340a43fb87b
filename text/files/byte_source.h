// The bytes of a file, one block after the other, decompressed where its name says that it is
// compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace zeroplan {

enum class Compression { kNone, kGzip, kZstd };
// The compression by the name: ".gz", ".zst".
Compression CompressionOf(const std::filesystem::path& path);

class ByteSource {
 public:
  // Throws Error(kUsage) naming the path if it cannot be opened or is no regular file.
  static std::unique_ptr<ByteSource> Open(const std::filesystem::path& path);
  virtual ~ByteSource() = default;

  // Reads at least one byte, unless there are no more. REQUIRES: out is not empty. Throws
  // Error(kUsage) naming the path if it cannot be read, is not compressed as its name says, is
  // damaged or cut short.
  virtual size_t Read(std::span<char> out) = 0;
  // Bytes of the file, as it lies on disk: read so far, and all.
  virtual uint64_t position() const = 0;
  virtual uint64_t size() const = 0;
};

}  // namespace zeroplan
