#include "text/files/line_reader.h"

#include "core/base/error.h"

namespace zeroplan {
namespace {

constexpr size_t kLineBlockBytes = size_t{1} << 20;
constexpr size_t kMostBytes = size_t{1} << 30;

}  // namespace

LineReader::LineReader(const std::filesystem::path& path)
    : path_(path), bytes_(ByteSource::Open(path)), block_(kLineBlockBytes) {}

bool LineReader::Next(std::string* line) {
  line->clear();
  ++number_;
  for (bool any = false;;) {
    if (rest_.empty()) {
      rest_ = {block_.data(), bytes_->Read(block_)};
      if (rest_.empty()) return any;
    }
    any = true;
    const size_t end = rest_.find('\n');
    line->append(rest_.substr(0, end));
    if (line->size() > kMostBytes) {
      ThrowUsage("{}:{}: a line of more than 1 GiB; a record is one line", path_.string(), number_);
    }
    if (end != std::string_view::npos) {
      rest_.remove_prefix(end + 1);
      break;
    }
    rest_ = {};
  }
  if (line->ends_with('\r')) line->pop_back();
  return true;
}

}  // namespace zeroplan
