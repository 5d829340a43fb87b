#include "text/files/record_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/base/strings.h"
#include "text/files/byte_source.h"
#include "text/files/table_rows.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kPipeBytes = size_t{1} << 18;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

[[noreturn]] void FailTooLarge(const std::string& where) {
  ThrowUsage(
      "{}: a record of more than {} MiB; cut it into several, or give its text as a file of text",
      where, kMostRecordBytes >> 20);
}

// Characters of a file, one after the other, and which line they are on.
class CharReader {
 public:
  explicit CharReader(const fs::path& path)
      : path_(path.string()), bytes_(ByteSource::Open(path)), block_(kPipeBytes) {
    for (const char c : kByteOrderMark) {
      if (Peek() != static_cast<unsigned char>(c)) break;
      ++at_;
    }
  }

  // -1: the end.
  int Peek() {
    if (at_ == end_) {
      at_ = 0;
      end_ = bytes_->Read(block_);
      if (end_ == 0) return -1;
    }
    return static_cast<unsigned char>(block_[at_]);
  }
  int Take() {
    const int c = Peek();
    if (c < 0) return c;
    ++at_;
    if (c == '\n') ++line_;
    return c;
  }
  int64_t line() const { return line_; }
  const std::string& path() const { return path_; }
  uint64_t position() const { return bytes_->position(); }

 private:
  std::string path_;
  std::unique_ptr<ByteSource> bytes_;
  std::vector<char> block_;
  size_t at_ = 0;
  size_t end_ = 0;
  int64_t line_ = 1;
};

class JsonLines : public RecordReader {
 public:
  explicit JsonLines(const fs::path& path) : path_(path.string()), lines_(path, kMostRecordBytes) {}

  bool Next(std::string* record) override {
    while (lines_.Next(record)) {
      if (lines_.number() == 1 && record->starts_with(kByteOrderMark)) record->erase(0, 3);
      if (record->find_first_not_of(" \t\r") != std::string::npos) return true;
    }
    return false;
  }
  std::string where() const override { return fmt::format("{}:{}", path_, lines_.number()); }
  uint64_t position() const override { return lines_.position(); }

 private:
  std::string path_;
  LineReader lines_;
};

// The elements of a file that is one list, or values one after the other, whatever lines they are
// on.
class JsonValues : public RecordReader {
 public:
  explicit JsonValues(const fs::path& path) : chars_(path) {
    SkipSpace();
    is_list_ = chars_.Peek() == '[';
    if (is_list_) chars_.Take();
  }

  bool Next(std::string* record) override {
    record->clear();
    SkipSpace();
    if (is_list_ && any_ && chars_.Peek() == ',') {
      chars_.Take();
      SkipSpace();
    } else if (is_list_ && any_ && chars_.Peek() >= 0 && chars_.Peek() != ']') {
      begin_ = chars_.line();
      ThrowUsage("{}: a comma is missing between two elements of the list", where());
    }
    begin_ = chars_.line();
    if (is_list_ && chars_.Peek() == ']') {
      chars_.Take();
      SkipSpace();
      if (chars_.Peek() >= 0) {
        ThrowUsage("{}:{}: there is more behind the list that the file is", chars_.path(),
                   chars_.line());
      }
      return false;
    }
    if (chars_.Peek() < 0) {
      if (is_list_) ThrowUsage("{}: the list that the file is does not end; get it again", where());
      return false;
    }
    any_ = true;
    TakeValue(record);
    return true;
  }
  std::string where() const override { return fmt::format("{}:{}", chars_.path(), begin_); }
  uint64_t position() const override { return chars_.position(); }

 private:
  void SkipSpace() {
    while (chars_.Peek() == ' ' || chars_.Peek() == '\t' || chars_.Peek() == '\n' ||
           chars_.Peek() == '\r') {
      chars_.Take();
    }
  }
  // Up to where the brackets are closed, or, of a scalar, up to what cannot belong to it.
  void TakeValue(std::string* record) {
    int64_t depth = 0;
    bool in_text = false;
    for (int c = chars_.Peek(); c >= 0; c = chars_.Peek()) {
      if (!in_text && depth == 0 && (c == ',' || c == ']' || c == '}')) {
        if (record->empty()) {
          ThrowUsage("{}: '{}' stands where a record was expected", where(), static_cast<char>(c));
        }
        return;
      }
      *record += static_cast<char>(chars_.Take());
      if (record->size() > kMostRecordBytes) FailTooLarge(where());
      if (in_text) {
        if (c == '\\' && chars_.Peek() >= 0) *record += static_cast<char>(chars_.Take());
        in_text = c != '"';
        if (in_text || depth > 0) continue;
        return;
      }
      in_text = c == '"';
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth == 0) return;
      if (depth == 0 && !in_text && (c == ' ' || c == '\n' || c == '\r' || c == '\t')) return;
    }
    if (depth > 0 || in_text) {
      ThrowUsage("{}: the record that begins here does not end; get the file again", where());
    }
  }

  CharReader chars_;
  bool is_list_ = false;
  bool any_ = false;
  int64_t begin_ = 1;
};

// `text` between quotes. Bytes that are no UTF-8 stay, for whoever counts them.
void AppendJsonText(std::string_view text, std::string* out) {
  *out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      *out += '\\';
      *out += c;
    } else if (c == '\n') {
      *out += "\\n";
    } else if (static_cast<unsigned char>(c) < ' ' && c != '\0') {
      *out += fmt::format("\\u{:04x}", c);
    } else {
      *out += c;
    }
  }
  *out += '"';
}

// RFC 4180, with any line ends: fields between the delimiter, in quotes if need be, quotes in them
// doubled. The first row names the columns.
class CsvRows : public RecordReader {
 public:
  CsvRows(const fs::path& path, char delimiter) : chars_(path), delimiter_(delimiter) {
    if (!TakeRow()) ThrowUsage("{}: the first row, which names the columns, is missing", where());
    names_ = std::move(row_);
    std::set<std::string> seen;
    for (const std::string& name : names_) {
      if (name.empty() || !seen.insert(name).second) {
        ThrowUsage("{}: the first row names the columns, and {} there; give each its name", where(),
                   name.empty() ? "one is empty" : "two are " + PrintableText(name, 40));
      }
    }
  }

  bool Next(std::string* record) override {
    whole_ = false;
    do {
      if (!TakeRow()) return false;
    } while (row_.size() == 1 && row_[0].empty() && names_.size() > 1);  // a blank line
    whole_ = true;
    if (row_.size() != names_.size()) {
      ThrowUsage(
          "{}: has {} fields, where the first row names {} columns; quote fields that have "
          "the delimiter or line ends in them",
          where(), row_.size(), names_.size());
    }
    *record = "{";
    for (size_t i = 0; i < row_.size(); ++i) {
      if (i > 0) *record += ',';
      AppendJsonText(names_[i], record);
      *record += ':';
      AppendJsonText(row_[i], record);
    }
    *record += '}';
    return true;
  }
  bool can_go_on() const override { return whole_; }
  std::string where() const override { return fmt::format("{}:{}", chars_.path(), begin_); }
  uint64_t position() const override { return chars_.position(); }

 private:
  bool TakeRow() {
    row_.clear();
    begin_ = chars_.line();
    if (chars_.Peek() < 0) return false;
    size_t bytes = 0;
    for (;;) {
      if (row_.size() == kMostMembers) {
        ThrowUsage("{}: a row of more than {} fields, which no table of records has", where(),
                   kMostMembers);
      }
      std::string& field = row_.emplace_back();
      const bool quoted = chars_.Peek() == '"';
      if (quoted) TakeQuoted(&field, &bytes);
      int c = chars_.Peek();
      while (c >= 0 && c != delimiter_ && c != '\n' && c != '\r') {
        if (quoted) {
          ThrowUsage("{}: something stands behind a closing quote; double the quotes in a field",
                     where());
        }
        field += static_cast<char>(chars_.Take());
        if (++bytes > kMostRecordBytes) FailTooLarge(where());
        c = chars_.Peek();
      }
      if (c == delimiter_) {
        chars_.Take();
        continue;
      }
      if (c == '\r') chars_.Take();
      if (chars_.Peek() == '\n') chars_.Take();
      return true;
    }
  }
  void TakeQuoted(std::string* field, size_t* bytes) {
    chars_.Take();
    for (;;) {
      const int c = chars_.Take();
      if (c < 0) ThrowUsage("{}: a quote is opened in this row and not closed", where());
      if (c == '"') {
        if (chars_.Peek() != '"') return;
        chars_.Take();
      }
      *field += static_cast<char>(c);
      if (++*bytes > kMostRecordBytes) FailTooLarge(where());
    }
  }

  CharReader chars_;
  char delimiter_;
  std::vector<std::string> names_, row_;
  int64_t begin_ = 1;
  bool whole_ = false;  // the row was
};

// Whether the file is lines of JSON: its first line is a value of its own.
bool IsJsonLines(const fs::path& path) {
  CharReader chars(path);
  std::string line;
  for (int c = chars.Take(); c >= 0 && (c != '\n' || line.empty()); c = chars.Take()) {
    if (line.empty() && (c == ' ' || c == '\t' || c == '\r' || c == '\n')) continue;
    if (line.empty() && c == '[') return false;
    line += static_cast<char>(c);
    if (line.size() > kPipeBytes) return true;
  }
  return Json::accept(line) || KindSuffix(path) != ".json";
}

// What stands between the fields of a file of that name.
char DelimiterOf(const fs::path& path, const fs::path& name) {
  if (KindSuffix(name) == ".tsv") return '\t';
  CharReader chars(path);
  bool other = false;
  uint64_t bytes = 0;
  for (int c = chars.Take(); c >= 0 && c != '\n' && ++bytes < kMostRecordBytes; c = chars.Take()) {
    if (c == ',') return ',';
    other = other || c == ';';
  }
  return other ? ';' : ',';
}

}  // namespace

std::unique_ptr<RecordReader> RecordReader::Open(const fs::path& path,
                                                 std::span<const std::string> members) {
  const fs::path name = CompressionOf(path) == Compression::kNone ? path : path.stem();
  const std::string extension = KindSuffix(name);
  if (extension == ".parquet" || extension == ".arrow") {
    if (name != path) ThrowUsage("{}: a compressed table; decompress it", path.string());
    return OpenTable(path, members);
  }
  if (extension == ".csv" || extension == ".tsv") {
    return std::make_unique<CsvRows>(path, DelimiterOf(path, name));
  }
  if (IsJsonLines(path)) return std::make_unique<JsonLines>(path);
  return OpenJson(path);
}

std::unique_ptr<RecordReader> RecordReader::OpenJson(const fs::path& path) {
  return std::make_unique<JsonValues>(path);
}

}  // namespace zeroplan
