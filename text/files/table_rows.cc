#include "text/files/table_rows.h"

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
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/files.h"
#include "core/base/limits.h"
#include "core/base/shell_process.h"
#include "core/base/strings.h"
#include "text/files/byte_source.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): not all systems declare it

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using TableJson = nlohmann::ordered_json;

constexpr size_t kRowsBlockBytes = size_t{1} << 18;

// Python runs this with the file, the most bytes of a value and the most columns. It prints "N" and
// the names of the columns, then for each row "R" and the row as JSON; "E" and what went wrong, "L"
// and what is too large. Members that are null are left out: tables give all rows of a struct all
// members that any has.
//
// A file of some KB may stand for any number of bytes (compressed pages, dictionaries). So few rows
// are read at a time, large ones are turned into text one by one, and the process has a limit for
// all: 4 GiB hold the largest page (2 GiB), and 16 values of the largest size with their texts.
constexpr const char* kTableScript = R"(
import sys
sys.path[:] = [folder for folder in sys.path if folder not in ("", "/")]
import json, os
out = os.fdopen(1, "w", encoding="utf-8", newline="\n", buffering=1 << 20)
def end(text, kind="E"):
    out.write(kind + " ".join(str(text)[:1000].split()) + "\n")
    out.flush()
    os._exit(0)
try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except Exception as error:
    end("pyarrow: " + str(error))
try:
    # Before pyarrow 14.0.1 a column of this type is a pickle, and reading it runs code.
    pa.unregister_extension_type("arrow.py_extension_type")
except Exception:
    pass
path, most, most_columns, members = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), set(sys.argv[4:])
ROWS, SMALL, MEMORY = 16, 4 << 20, 4 << 30
def set_memory(limited):
    try:
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        with open("/proc/self/status") as status:
            has = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
        if not limited:
            soft = hard
        elif soft == resource.RLIM_INFINITY or soft > has + MEMORY:
            soft = has + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        return max(soft - has, 0)
    except Exception:
        return MEMORY
def clean(value):
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(key): clean(item) for key, item in value if item is not None}
        return [clean(item) for item in value]
    return value
def refuse(value):
    raise TypeError(type(value).__name__)
def text_of(name, value):
    try:
        return json.dumps(clean(value), ensure_ascii=False, default=refuse)
    except TypeError as error:
        end(f"the column {name} holds {error}, no text; write it as text, or leave it out")
def row_of(items):
    return "{" + ", ".join(json.dumps(name) + ": " + text for name, text in items) + "}"
def name_columns(names):
    if len(names) > most_columns:
        end(f"{len(names)} columns, and at most {most_columns} are read; leave some out", "L")
    out.write("N" + json.dumps(names) + "\n")
    return [name for name in names if name in members]
def batches():
    if path.lower().endswith(".parquet"):
        file = pq.ParquetFile(path, buffer_size=1 << 20)
        wanted = name_columns(file.schema_arrow.names)
        yield from file.iter_batches(batch_size=ROWS, columns=wanted, use_threads=False)
        return
    with pa.memory_map(path) as source:
        try:
            reader = pa.ipc.open_stream(source)
            parts = iter(reader)
        except pa.ArrowInvalid:
            reader = pa.ipc.open_file(source)
            parts = (reader.get_batch(i) for i in range(reader.num_record_batches))
        wanted = name_columns(reader.schema.names)
        for part in parts:
            part = pa.Table.from_batches([part]).select(wanted)
            for start in range(0, part.num_rows, ROWS):
                yield part.slice(start, ROWS)
def texts_of(part, at, row):
    for name, column in zip(part.schema.names, part.columns):
        value = column.slice(at, 1)
        nested = pa.types.is_nested(value.type) or pa.types.is_dictionary(value.type)
        text = None
        if nested or value.nbytes <= most:
            value = value.to_pylist()[0]
            if value is None:
                continue
            text = text_of(name, value)
        if text is None or len(text) > most:
            end(f"row {row}: {name}: a value of more than {most >> 20} MiB; cut it into several", "L")
        yield name, text
done, room = 0, set_memory(True)
try:
    for part in batches():
        if part.nbytes <= SMALL:
            for row in part.to_pylist():
                out.write("R" + row_of((name, text_of(name, value)) for name, value in row.items()
                                       if value is not None) + "\n")
        else:
            for i in range(part.num_rows):
                out.write("R" + row_of(texts_of(part, i, done + i + 1)) + "\n")
        done += part.num_rows
        part = None
    out.flush()
except BrokenPipeError:
    os._exit(0)
except MemoryError:
    part = row = None
    set_memory(False)
    end(f"row {done + 1} or one of the {ROWS - 1} behind it takes more than {room >> 20} MiB of "
        f"memory, and a value has at most {most >> 20} MiB; cut it into several", "L")
except Exception as error:
    end(error)
os._exit(0)
)";

// This process's environment, without the folders of PYTHONPATH that are no absolute path or are
// the working folder: Python would take its modules, sitecustomize first, from there.
std::vector<std::string> EnvironmentOfPython() {
  constexpr std::string_view kModules = "PYTHONPATH=";
  std::error_code failed;
  const fs::path here = fs::current_path(failed);
  std::vector<std::string> all;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view entry = *at;
    if (!entry.starts_with(kModules)) {
      all.emplace_back(entry);
      continue;
    }
    std::string kept;
    for (std::string_view rest = entry.substr(kModules.size()); !rest.empty();) {
      const std::string_view folder = rest.substr(0, rest.find(':'));
      rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
      if (!folder.starts_with('/') || fs::equivalent(folder, here, failed)) continue;
      if (!kept.empty()) kept += ':';
      kept += folder;
    }
    if (!kept.empty()) all.push_back(std::string(kModules) + kept);
  }
  return all;
}

// A process that ends with the object, whatever it was at.
class ChildProcess {
 public:
  ChildProcess() = default;
  ~ChildProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void Take(pid_t pid) { pid_ = pid; }
  // Waits for its end; true: with status 0, now or before.
  bool EndsWell() {
    int status = 0;
    const pid_t pid = std::exchange(pid_, -1);
    return pid <= 0 || (waitpid(pid, &status, 0) == pid && status == 0);
  }

 private:
  pid_t pid_ = -1;
};

class TableRows : public RecordReader {
 public:
  TableRows(const fs::path& path, std::span<const std::string> members)
      : path_(path.string()), block_(kRowsBlockBytes) {
    CheckFileName(path);
    const char* chosen = std::getenv("ZEROPLAN_PYTHON");
    python_ = chosen != nullptr && *chosen != '\0' ? chosen : "python3";
    Start(members);
    std::string line;
    if (!TakeLine(&line) || line.empty() || line[0] != 'N') FailToStart();
    const TableJson names = TableJson::parse(line.substr(1), nullptr, false);
    for (const TableJson& name : names) {
      if (name.is_string() &&
          std::find(members.begin(), members.end(), name.get<std::string>()) == members.end()) {
        others_.push_back(name.get<std::string>());
      }
    }
  }

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
        *record += fmt::format("{}{}: null", comma, TableJson(name).dump());
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
    const std::string program = FindProgram(python_);
    std::error_code failed_path;
    // Python looks for its own parts beside the program that its first word names.
    std::vector<std::string> words = {program,
                                      "-c",
                                      kTableScript,
                                      fs::absolute(path_, failed_path).string(),
                                      std::to_string(kMostRecordBytes),
                                      std::to_string(kMostMembers)};
    words.insert(words.end(), members.begin(), members.end());
    std::vector<std::string> environment = EnvironmentOfPython();
    const std::vector<char*> argv = ArgvOf(words), envp = ArgvOf(environment);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addchdir_np(&actions, "/");
    pid_t child = -1;
    const int failed =
        posix_spawn(&child, program.c_str(), &actions, nullptr, argv.data(), envp.data());
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) FailToStart();
    child_.Take(child);
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
        FailTooLarge();
      }
      if (end != std::string_view::npos) {
        at_ += end + 1;
        if (!line->empty() && line->front() == 'E') Fail(line->substr(1));
        if (!line->empty() && line->front() == 'L') {
          ThrowUsage("{}: {}", path_, PrintableText(line->substr(1), 400));
        }
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
    if (!child_.EndsWell()) Fail(fmt::format("{} ended before it", python_));
  }
  [[noreturn]] void FailTooLarge() const {
    ThrowUsage("{}: a record of more than {} MiB; cut it into several", where(),
               kMostRecordBytes >> 20);
  }
  [[noreturn]] void Fail(const std::string& reason) const {
    if (reason.starts_with("pyarrow:")) FailToStart();
    ThrowUsage("{}: cannot be read as a table: {}", path_, PrintableText(reason, 200));
  }
  [[noreturn]] void FailToStart() const {
    // In /, too: python3 -c imports from the working folder.
    const auto quoted = [](const fs::path& file) {
      std::error_code failed;
      return TableJson(fs::absolute(file, failed).string())
          .dump(-1, ' ', true, TableJson::error_handler_t::replace);
    };
    const std::string script = fmt::format(
        R"(import datasets as d; d.load_dataset("{}", data_files={})["train"].to_json({}))",
        KindSuffix(path_).substr(1), quoted(path_), quoted("data.jsonl"));
    ThrowUsage(
        "{}: a table, which {} reads with the package pyarrow, and {} has none; install it (pip "
        "install pyarrow), name a Python that has it in ZEROPLAN_PYTHON, or write the table as "
        "lines of JSON: cd / && python3 -c {}",
        path_, python_, python_, QuoteForShell(script));
  }

  std::string path_, python_;
  UniqueFd out_;
  ChildProcess child_;
  std::vector<char> block_;
  size_t at_ = 0;
  size_t end_ = 0;
  std::vector<std::string> others_;
  int64_t number_ = 0;
};

}  // namespace

std::unique_ptr<RecordReader> OpenTable(const fs::path& path,
                                        std::span<const std::string> members) {
  return std::make_unique<TableRows>(path, members);
}

}  // namespace zeroplan
