#include "text/files/record_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/strings.h"
#include "text/files/byte_source.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): not all systems declare it

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
    Json object = Json::object();
    for (size_t i = 0; i < row_.size(); ++i) object[names_[i]] = row_[i];
    *record = object.dump(-1, ' ', false, Json::error_handler_t::replace);
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

// What Python runs: "N" and the names of the columns, then for each row "R" and the row as JSON;
// "E" and what went wrong. Members that are null are left out: tables give all rows of a struct all
// members that any has.
constexpr const char* kTableScript = R"(
import json, os, sys
out = os.fdopen(1, "w", encoding="utf-8", newline="\n", buffering=1 << 20)
def end(text):
    out.write("E" + " ".join(str(text).split()) + "\n")
    out.flush()
    os._exit(0)
try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except Exception as error:
    end("pyarrow: " + str(error))
path, members = sys.argv[1], set(sys.argv[2:])
def clean(value):
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(key): clean(item) for key, item in value if item is not None}
        return [clean(item) for item in value]
    return value
def batches():
    if path.lower().endswith(".parquet"):
        file = pq.ParquetFile(path)
        yield file.schema_arrow.names
        wanted = [name for name in file.schema_arrow.names if name in members]
        yield from file.iter_batches(batch_size=1024, columns=wanted)
        return
    with pa.memory_map(path) as source:
        try:
            reader = pa.ipc.open_stream(source)
            parts = iter(reader)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(source)
            parts = (reader.get_batch(i) for i in range(reader.num_record_batches))
        names = reader.schema.names
        yield names
        wanted = [name for name in names if name in members]
        for part in parts:
            part = pa.Table.from_batches([part]).select(wanted)
            for start in range(0, part.num_rows, 1024):
                yield part.slice(start, 1024)
try:
    parts = batches()
    out.write("N" + json.dumps(next(parts)) + "\n")
    for part in parts:
        for row in part.to_pylist():
            out.write("R" + json.dumps(clean(row), ensure_ascii=False) + "\n")
    out.flush()
except BrokenPipeError:
    os._exit(0)
except Exception as error:
    end(error)
os._exit(0)
)";

class TableRows : public RecordReader {
 public:
  TableRows(const fs::path& path, std::span<const std::string> members)
      : path_(path.string()), block_(kPipeBytes) {
    const char* chosen = std::getenv("ZEROPLAN_PYTHON");
    python_ = chosen != nullptr && *chosen != '\0' ? chosen : "python3";
    Start(members);
    std::string line;
    if (!TakeLine(&line) || line.empty() || line[0] != 'N') FailToStart();
    const Json names = Json::parse(line.substr(1), nullptr, false);
    for (const Json& name : names) {
      if (name.is_string() &&
          std::find(members.begin(), members.end(), name.get<std::string>()) == members.end()) {
        others_.push_back(name.get<std::string>());
      }
    }
  }
  ~TableRows() override {
    out_ = UniqueFd();
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
  }
  TableRows(const TableRows&) = delete;
  TableRows& operator=(const TableRows&) = delete;

  bool Next(std::string* record) override {
    std::string line;
    if (!TakeLine(&line)) {
      CheckEnd();
      return false;
    }
    ++number_;
    if (line.empty() || line[0] != 'R') Fail("its rows cannot be understood");
    record->assign(line, 1);
    if (number_ == 1 && !others_.empty() && record->ends_with('}')) {
      // The names of all columns, for the message that says what was found.
      record->pop_back();
      std::string_view comma = *record == "{" ? "" : ", ";
      for (const std::string& name : others_) {
        *record += fmt::format("{}{}: null", comma, Json(name).dump());
        comma = ", ";
      }
      *record += '}';
    }
    return true;
  }
  std::string where() const override { return fmt::format("{}: row {}", path_, number_); }
  uint64_t position() const override { return 0; }

 private:
  void Start(std::span<const std::string> members) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      ThrowRuntime("{}: no pipe can be made ({})", path_, std::strerror(errno));
    }
    out_ = UniqueFd(ends[0]);
    const UniqueFd in(ends[1]);
    std::vector<std::string> words = {python_, "-c", kTableScript, path_};
    words.insert(words.end(), members.begin(), members.end());
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    const int failed =
        posix_spawnp(&child_, python_.c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) {
      child_ = -1;
      FailToStart();
    }
  }
  // Without what ends it; false: there are no more.
  bool TakeLine(std::string* line) {
    line->clear();
    for (;;) {
      const std::string_view rest(block_.data() + at_, end_ - at_);
      const size_t end = rest.find('\n');
      line->append(rest.substr(0, end));
      if (line->size() > kMostRecordBytes) {
        ++number_;
        FailTooLarge(where());
      }
      if (end != std::string_view::npos) {
        at_ += end + 1;
        if (!line->empty() && line->front() == 'E') Fail(line->substr(1));
        return true;
      }
      at_ = 0;
      ssize_t got = 0;
      do {
        got = read(out_.get(), block_.data(), block_.size());
      } while (got < 0 && errno == EINTR);
      end_ = got > 0 ? static_cast<size_t>(got) : 0;
      if (end_ == 0) return false;
    }
  }
  void CheckEnd() {
    int status = 0;
    const pid_t child = std::exchange(child_, -1);
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0)) {
      Fail(fmt::format("{} ended before it", python_));
    }
  }
  [[noreturn]] void Fail(const std::string& reason) const {
    if (reason.starts_with("pyarrow:")) FailToStart();
    ThrowUsage("{}: cannot be read as a table: {}", path_, PrintableText(reason, 200));
  }
  [[noreturn]] void FailToStart() const {
    ThrowUsage(
        "{}: a table, which {} reads with the package pyarrow, and {} has none; install it (pip "
        "install pyarrow), name a Python that has it in ZEROPLAN_PYTHON, or write the table as "
        "lines of JSON: python3 -c 'import datasets as d; d.load_dataset(\"{}\", "
        "data_files=\"{}\")[\"train\"].to_json(\"data.jsonl\")'",
        path_, python_, python_, KindSuffix(path_).substr(1), path_);
  }

  std::string path_, python_;
  UniqueFd out_;
  pid_t child_ = -1;
  std::vector<char> block_;
  size_t at_ = 0;
  size_t end_ = 0;
  std::vector<std::string> others_;
  int64_t number_ = 0;
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
  for (int c = chars.Take(); c >= 0 && c != '\n'; c = chars.Take()) {
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
    return std::make_unique<TableRows>(path, members);
  }
  if (extension == ".csv" || extension == ".tsv") {
    return std::make_unique<CsvRows>(path, DelimiterOf(path, name));
  }
  if (IsJsonLines(path)) return std::make_unique<JsonLines>(path);
  return std::make_unique<JsonValues>(path);
}

}  // namespace zeroplan
