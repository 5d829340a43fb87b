// What others' files must not do: run code, or take more than their reader gives them. What takes
// too much ends with an error that names it, by counts and bytes.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/limits.h"
#include "core/base/shell_process.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/scoped_env.h"
#include "tests/text/documents/compressed_files.h"
#include "tests/text/tokenizer/tokenizer_folder.h"
#include "text/documents/records.h"
#include "text/files/byte_source.h"
#include "text/files/record_reader.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

class WorkingFolder {
 public:
  explicit WorkingFolder(const fs::path& folder) : before_(fs::current_path()) {
    fs::current_path(folder);
  }
  ~WorkingFolder() { fs::current_path(before_); }

 private:
  fs::path before_;
};

// What the reader says to the file: "" if it reads it all.
std::string ReadAll(const fs::path& file) {
  try {
    const std::vector<std::string> members = {"text"};
    const auto reader = RecordReader::Open(file, members);
    for (std::string record; reader->Next(&record);) {
    }
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

bool HasPyarrow() {
  return std::system("${ZEROPLAN_PYTHON:-python3} -c 'import pyarrow.parquet' 2> /dev/null") == 0;
}

// Runs `script` in the folder by the Python that reads tables.
void RunPython(const TokenizerFolder& folder, const std::string& script) {
  folder.Write("make.py", script);
  const std::string command = "cd '" + folder.path("") + "' && ${ZEROPLAN_PYTHON:-python3} make.py";
  REQUIRE(std::system(command.c_str()) == 0);
}

TEST_CASE("foreign files: reading a table runs nothing that lies in the working folder") {
  const TokenizerFolder folder;
  fs::create_directory(folder.path("ran"));
  for (const char* name : {"json", "os", "site", "sitecustomize", "usercustomize", "resource",
                           "pyarrow", "numpy", "codecs", "encodings", "io", "abc"}) {
    folder.Write(std::string(name) + ".py",
                 "open('" + folder.path("ran/") + name + "', 'w').close()\n");
  }
  folder.Write("python3", "#!/bin/sh\ntouch " + folder.path("ran/python3") + "\n");
  fs::permissions(folder.path("python3"), fs::perms::owner_all);
  fs::copy_file(SourcePath("tests/fixtures/chats.parquet"), folder.path("chats.parquet"));
  const WorkingFolder here(folder.path(""));
  const std::string path = std::getenv("PATH");
  const ScopedEnv programs("PATH", ":.:" + path + ":");
  for (const std::string& modules : {std::string(), std::string(":"), std::string("."),
                                     folder.path(""), folder.path("") + ":/no/such/folder:"}) {
    CAPTURE(modules);
    const ScopedEnv folders("PYTHONPATH", modules);
    for (const bool chosen : {false, true}) {
      const char* python = std::getenv("ZEROPLAN_PYTHON");
      const ScopedEnv which("ZEROPLAN_PYTHON", chosen && python != nullptr ? python : "");
      const std::string said = ReadAll("chats.parquet");
      CHECK((said.empty() || Has(said, "pip install pyarrow")));
    }
  }
  for (const auto& entry : fs::directory_iterator(folder.path("ran"))) {
    FAIL_CHECK(entry.path().filename().string() << " of the working folder ran");
  }
}

TEST_CASE("foreign files: programs are looked for in absolute folders alone") {
  const TokenizerFolder folder;
  folder.Write("zp-tool", "#!/bin/sh\n");
  fs::permissions(folder.path("zp-tool"), fs::perms::owner_all);
  fs::create_directory(folder.path("bin"));
  const WorkingFolder here(folder.path(""));
  const ScopedEnv programs("PATH", ":.:bin::" + folder.path("bin"));
  CHECK(FindProgram("zp-tool").empty());
  CHECK(FindProgram("").empty());
  CHECK(FindProgram("./zp-tool") == fs::absolute("./zp-tool").string());
  folder.Write("bin/zp-tool", "no program");
  CHECK(FindProgram("zp-tool").empty());
  fs::permissions(folder.path("bin/zp-tool"), fs::perms::owner_all);
  CHECK(FindProgram("zp-tool") == folder.path("bin/zp-tool"));
}

TEST_CASE("foreign files: a table that is refused leaves no process behind") {
  const TokenizerFolder folder;
  folder.Write("bad.parquet", "PAR1, and no table");
  CHECK_FALSE(ReadAll(folder.path("bad.parquet")).empty());
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("foreign files: a table's values are as large as other records") {
  if (!HasPyarrow()) return;
  const TokenizerFolder folder;
  RunPython(folder, R"(
import pyarrow as pa, pyarrow.parquet as pq, pyarrow.ipc as ipc
pq.write_table(pa.table({"text": ["a", "y" * (70 << 20)]}), "long.parquet", compression="zstd")
pq.write_table(pa.table({f"c{i}": [1] for i in range(10001)}), "wide.parquet")
packed = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array(["w" * (50 << 20)]))
for name, column in ("all", pa.ListArray.from_arrays(pa.array([0, 200], pa.int32()), packed)), ("each", packed[:3]):
    table = pa.table({"text": column})
    with ipc.new_file(name + ".arrow", table.schema) as writer:
        writer.write_table(table)
)");
  CHECK(Has(ReadAll(folder.path("long.parquet")),
            "long.parquet: row 2: text: a value of more than 64 MiB; cut it into several"));
  CHECK(Has(ReadAll(folder.path("wide.parquet")), "10001 columns, and at most 10000 are read"));
  CHECK(ReadAll(folder.path("each.arrow")).empty());
  // A limit that is lower than the reader's own holds.
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_DATA, &before) == 0);
  rlimit less = before;
  less.rlim_cur = std::min<rlim_t>(before.rlim_max, rlim_t{2} << 30);
  REQUIRE(setrlimit(RLIMIT_DATA, &less) == 0);
  const std::string all = ReadAll(folder.path("all.arrow"));
  REQUIRE(setrlimit(RLIMIT_DATA, &before) == 0);
  CHECK(Has(all, "all.arrow: row 1 or one of the 15 behind it takes more than "));
  CHECK(Has(all, " MiB of memory, and a value has at most 64 MiB; cut it into several"));
}

TEST_CASE("foreign files: records, lines and rows have limits") {
  const TokenizerFolder folder;
  const auto said = [&](const std::string& name, const std::string& bytes) {
    folder.Write(name, bytes);
    return ReadAll(folder.path(name));
  };
  const std::string blanks(kMostRecordBytes + 100, ' ');
  CHECK(Has(said("a.jsonl.gz", Gzip("{\"text\": \"" + blanks)), "a.jsonl.gz:1: a line of more"));
  CHECK(Has(said("a.json.zst", Zstd("[{\"text\": \"" + blanks)), "a.json.zst:1: a record of more"));
  CHECK(Has(said("a.csv.gz", Gzip("text\n" + blanks)), "a.csv.gz:2: a record of more"));
  std::string names = "a0", row = "x";
  for (size_t i = 1; i < kMostMembers; ++i) {
    names += fmt::format(",a{}", i);
    row += ",x";
  }
  CHECK(said("wide.csv", names + "\n" + row + "\n").empty());
  CHECK(Has(said("wide.csv", names + ",b\n" + row + "\n"), "wide.csv:1: a row of more than 10000"));
  CHECK(Has(said("wide.csv", "a,b\n" + std::string(1 << 20, ',')), "wide.csv:2: a row of more"));
}

TEST_CASE("foreign files: records are nested and have members as deep and many as people write") {
  const RecordFormat chat = {RecordFormat::Kind::kChat, {}};
  // A member of a message, and what the conversation has beside its messages.
  const auto refused = [&](const std::string& member, const std::string& beside) {
    const std::string record = R"({"messages": [{"role": "user", "content": "a", "more": )" +
                               member + "}], \"tools\": " + beside + "}";
    return ErrorOf(ExitCode::kUsage, [&] { ReadRecord(record, chat, "f:7"); });
  };
  const auto nested = [](size_t depth, const std::string& open, const std::string& close) {
    std::string text;
    for (size_t i = 0; i < depth; ++i) text += open;
    text += '1';
    for (size_t i = 0; i < depth; ++i) text += close;
    return text;
  };
  const std::string deep = "values are nested more than 64 deep";
  CHECK(Has(refused(nested(100'000, "[", "]"), "[]"), "f:7: " + deep));
  CHECK(Has(refused(nested(62, "{\"a\": ", "}"), "[]"), "f:7: " + deep));
  CHECK(Has(refused("1", '"' + nested(100'000, "[", "]") + '"'), deep));  // JSON in JSON
  std::string members;
  for (size_t i = 0; i <= kMostMembers; ++i) members += fmt::format("\"{}\": 1, ", i);
  CHECK(Has(refused("{" + members + "\"b\": 1}", "[]"), "f:7: an object with more than 10000"));
  members.resize(members.rfind(", ", members.size() - 3));
  std::string objects = "[1";
  for (int i = 0; i < 25; ++i) objects += ", {" + members + "}";
  CHECK(Has(refused(objects + "]", "[]"), "f:7: objects with too many members in all"));
  std::string numbers = "[1";
  for (size_t i = 0; i < kMostRecordValues; ++i) numbers += ",1";
  CHECK(Has(refused(numbers + "]", "[]"), "f:7: more than 1000000 values"));
  const std::string huge = refused("1e99999", "[]");
  CHECK(Has(huge, "f:7: is not one whole JSON value: "));
  CHECK(Has(huge, "number overflow"));
  // As deep as it may be.
  const std::string most = nested(61, "[", "]");
  CHECK_NOTHROW(ReadRecord(R"({"messages": [{"role": "a", "content": "b", "c": )" + most + "}]}",
                           chat, "f:7"));
}

TEST_CASE("foreign files: messages are as long as people read, whatever they quote") {
  const std::string name(5 << 20, 'n');
  const std::string message = ErrorOf(
      ExitCode::kUsage, [&] { ReadRecord("[" + name, {RecordFormat::Kind::kText, {}}, name); });
  CHECK(message.size() < kMostMessageBytes + 100);
  CHECK(Has(message, "bytes are left out) ... nnn"));
  CHECK(Has(message, "n: is not one whole JSON value: "));
  CHECK(message.ends_with("; write one record a line"));
}

TEST_CASE("foreign files: a name with a byte 0 is no other file") {
  const TokenizerFolder folder;
  folder.Write("a.txt", "x");
  const fs::path named = std::string(folder.path("a.txt")) + std::string("\0.jsonl", 7);
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { ByteSource::Open(named); }),
            "a.txt\\x00.jsonl: a byte 0 is in the name"));
}

}  // namespace
}  // namespace zeroplan
