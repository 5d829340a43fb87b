// Files of data: which there are, their bytes, one block after the other, decompressed where the
// name says that they are compressed, and their lines.
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

// Lines of a file, compressed or not, one after the other.
class LineReader {
 public:
  // Throws as ByteSource::Open.
  explicit LineReader(const std::filesystem::path& path);

  // The next line, without what ends it ("\n" or "\r\n"); false: there is none. Throws as
  // ByteSource::Read, and Error(kUsage) naming file and line for one longer than 1 GiB.
  bool Next(std::string* line);
  // Number of the line that Next returned; the first is 1.
  int64_t number() const { return number_; }
  uint64_t position() const { return bytes_->position(); }

 private:
  std::filesystem::path path_;
  std::unique_ptr<ByteSource> bytes_;
  std::vector<char> block_;
  std::string_view rest_;  // of the block
  int64_t number_ = 0;
};

// The regular files below `folder`, at any depth, in byte order of their paths. Linked files count,
// linked folders are not entered: they could lead in circles. Throws Error(kUsage) naming the
// folder if it cannot be listed or has no files.
std::vector<std::filesystem::path> FilesBelow(const std::filesystem::path& folder);

// What --data names: files as they are, and those below folders, in this order.
std::vector<std::filesystem::path> DataFiles(std::span<const std::string> paths);

}  // namespace zeroplan
