// Reads bytes of data files block by block, decompressed if the name has a compression suffix, and
// their lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// The suffix that determines the kind of a file: the end of its name from the last dot on, in lower
// case.
std::string KindSuffix(const std::filesystem::path& path);

enum class Compression { kNone, kGzip, kZstd };
// The compression in the name: ".gz", ".zst".
Compression CompressionOf(const std::filesystem::path& path);

class ByteSource {
 public:
  // Throws Error(kUsage) naming the path if it cannot be opened or is no regular file.
  static std::unique_ptr<ByteSource> Open(const std::filesystem::path& path);
  virtual ~ByteSource() = default;

  // Reads at least one byte, unless there are no more. REQUIRES: out is not empty. Throws
  // Error(kUsage) naming the path if it cannot be read, is not compressed as its name implies, is
  // damaged or cut short.
  virtual size_t Read(std::span<char> out) = 0;
  // Appends bytes to `text` until it has `bytes`; false: the end was reached.
  bool ReadMore(size_t bytes, std::string* text);
  // Bytes of the file on disk: read so far, and total.
  virtual uint64_t position() const = 0;
  virtual uint64_t size() const = 0;
};

// Lines of a file, compressed or not, one after the other.
class LineReader {
 public:
  // Throws as ByteSource::Open.
  LineReader(const std::filesystem::path& path, uint64_t most_bytes);

  // The next line, without its end ("
  // " or "\r
  // "); false: there is none. Throws as ByteSource::Read, and Error(kUsage) naming file and line
  // for one longer than `most_bytes`.
  bool Next(std::string* line);
  // Number of the line that Next returned; the first is 1.
  int64_t number() const { return number_; }
  uint64_t position() const { return bytes_->position(); }

 private:
  std::filesystem::path path_;
  uint64_t most_bytes_;
  std::unique_ptr<ByteSource> bytes_;
  std::vector<char> block_;
  std::string_view rest_;  // rest of the block
  int64_t number_ = 0;
};

}  // namespace zeroplan
