// Lines of a file, compressed or not, one after the other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/files/byte_source.h"

namespace zeroplan {

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

}  // namespace zeroplan
