#include "text/files/data_files.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/text/tokenizer/tokenizer_folder.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// The names of the files that are taken of a folder with these, and what is said.
struct Taken {
  std::vector<std::string> files;
  std::string notes;
};
Taken Take(const std::vector<std::pair<std::string, std::string>>& files) {
  const TokenizerFolder folder;
  fs::create_directory(folder.path("data"));
  for (const auto& [name, text] : files) {
    const std::string path = "data/" + name;
    fs::create_directories(fs::path(folder.path(path)).parent_path());
    folder.Write(path, text);
  }
  const std::vector<std::string> paths = {folder.path("data")};
  const DataSelection selection = SelectData(paths);
  Taken taken;
  for (const fs::path& file : selection.files) {
    taken.files.push_back(file.lexically_relative(folder.path("data")).string());
  }
  for (const std::string& note : selection.notes) taken.notes += note + "\n";
  return taken;
}
using Names = std::vector<std::string>;

TEST_CASE("data files: of a folder, all that lie below it and are no hidden ones") {
  const Taken taken = Take({{"b.txt", ""}, {"a/c.md", ""}, {".git/x", ""}, {".gitattributes", ""}});
  CHECK(taken.files == Names{"a/c.md", "b.txt"});
  CHECK(taken.notes.empty());
}

TEST_CASE("data files: beside records, what describes them is left out, and said") {
  const Taken taken = Take({{"README.md", ""}, {"LICENSE", ""}, {"chats.jsonl", ""}});
  CHECK(taken.files == Names{"chats.jsonl"});
  CHECK(Has(taken.notes, "LICENSE and 1 more: left out, as they are no data"));
}

TEST_CASE("data files: the end of a name says the kind, in small letters or capitals") {
  for (const char* name : {"a.jsonl", "A.JSONL", "a.Csv", "A.JSON.GZ", "a.TSV.zst", "A.PARQUET",
                           "a.jsonlines", "a.JsonLines.gz"}) {
    CAPTURE(name);
    CHECK(FileKindOf(name) == FileKind::kRecords);
  }
  for (const char* name : {"a.bin", "A.BIN", "a.U16", "A.u32"}) {
    CAPTURE(name);
    CHECK(FileKindOf(name) == FileKind::kTokens);
  }
  for (const char* name : {"A.TXT", "A.TXT.GZ", "JSONL", "a.jsonl.txt"}) {
    CAPTURE(name);
    CHECK(FileKindOf(name) == FileKind::kText);
  }
  CHECK_FALSE(IsPlainText("A.ARROW"));
  CHECK_FALSE(IsPlainText("A.TXT.GZ"));
}

TEST_CASE("data files: of a dataset's splits, train") {
  const Taken taken = Take({{"data/train-00000-of-00002.parquet", ""},
                            {"data/train-00001-of-00002.parquet", ""},
                            {"data/test-00000-of-00001.parquet", ""}});
  CHECK(taken.files ==
        Names{"data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"});
  CHECK(Has(taken.notes, "test-00000-of-00001.parquet: left out"));
  CHECK(Has(taken.notes, "⟦validation_data⟧"));
  // Words within words are none; without a train there is nothing to choose.
  CHECK(Take({{"latest.jsonl", ""}, {"contest.jsonl", ""}}).files.size() == 2);
  CHECK(Take({{"test/a.txt", ""}, {"dev/b.txt", ""}}).files.size() == 2);
}

TEST_CASE("data files: folders that datasets saved") {
  const char* state = R"({"_data_files": [{"filename": "data-00001.arrow"},
                                          {"filename": "data-00000.arrow"}]})";
  CHECK(Take({{"state.json", state},
              {"dataset_info.json", "{}"},
              {"data-00000.arrow", ""},
              {"data-00001.arrow", ""},
              {"cache-1.arrow", ""}})
            .files == Names{"data-00001.arrow", "data-00000.arrow"});
  const Taken splits = Take({{"dataset_dict.json", R"({"splits": ["train", "test"]})"},
                             {"train/state.json", state},
                             {"test/state.json", state}});
  CHECK(splits.files == Names{"train/data-00001.arrow", "train/data-00000.arrow"});
  CHECK(Has(splits.notes, "the split train; test left out"));
  CHECK(Has(
      ErrorOf(ExitCode::kUsage, [] { Take({{"dataset_dict.json", R"({"splits": ["a", "b"]})"}}); }),
      "a dataset of the splits a, b, and none is train"));
}

}  // namespace
}  // namespace zeroplan
