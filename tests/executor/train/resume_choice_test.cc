// What --resume takes: all ranks the same, nothing damaged, and not more files than they need.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>

#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/process/process_group.h"
#include "executor/train/run_open.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/executor/process/thread_ranks.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 3;

struct Choices {
  std::vector<std::string> folders, errors, damaged;
};

Choices Choose(const fs::path& dir, bool strict, int ranks = kRanks,
               const ModelSpec& spec = SmallModel()) {
  Choices choices;
  choices.folders.resize(static_cast<size_t>(ranks));
  const auto table = BuildParamTable(spec);
  choices.errors = AsRanks(ranks, [&](TcpGroup& group) {
    SpreadFailure(group, [&] {
      const ResumeChoice choice = ChooseCheckpoint(group, dir, spec, table, strict);
      choices.folders[static_cast<size_t>(group.rank())] =
          choice.source ? choice.source->folder().filename().string() : "none";
      if (choice.source) CHECK(IsConsistent(*choice.source));
      if (group.rank() == 0) choices.damaged = choice.damaged;
    });
  });
  return choices;
}

bool AllAre(const std::vector<std::string>& texts, const std::string& text) {
  return std::all_of(texts.begin(), texts.end(), [&](const auto& t) { return t == text; });
}

struct Saved {
  FastTempDir dir;
  Saved() {
    for (const int64_t step : {10, 20, 30}) {
      SaveCheckpoint(dir.path(), SmallLayout(2, kRanks), step, {.keep = 3});
    }
  }
  fs::path folder(int64_t step) const {
    return CheckpointsFolder(dir.path()) / StepFolderName(step);
  }
};

struct Damage {
  const char* what;
  std::function<void(const fs::path&)> apply;
  const char* message;
};
const std::vector<Damage> kDamages = {
    {"meta changed", [](const fs::path& f) { FlipLastByte(f / "meta.json"); }, "meta.json: "},
    {"meta missing", [](const fs::path& f) { fs::remove(f / "meta.json"); }, "meta.json: "},
    {"shard missing", [](const fs::path& f) { fs::remove(f / "rank-0001.safetensors"); },
     "rank-0001.safetensors: No such file"},
    {"shard cut", [](const fs::path& f) { fs::resize_file(f / "rank-0002.safetensors", 4000); },
     "rank-0002.safetensors: 4000 bytes, saved with"},
    {"data changed", [](const fs::path& f) { FlipLastByte(f / "rank-0002.safetensors"); },
     "rank-0002.safetensors: adam_v of "},
    {"folder missing", [](const fs::path& f) { fs::remove_all(f); }, "is not there"},
};

TEST_CASE("checkpoint choice: none, then the latest, by all ranks") {
  const FastTempDir dir;
  Choices choices = Choose(dir.path(), true);
  CHECK(AllAre(choices.errors, ""));
  CHECK(AllAre(choices.folders, "none"));
  SaveCheckpoint(dir.path(), SmallLayout(2, 2), 4);
  choices = Choose(dir.path(), true);
  CHECK(AllAre(choices.errors, ""));
  CHECK(AllAre(choices.folders, "step-00000004"));
  CHECK(choices.damaged.empty());
}

TEST_CASE("checkpoint choice: a damaged one falls back to the newest intact one, on all ranks") {
  for (const Damage& damage : kDamages) {
    CAPTURE(damage.what);
    const Saved saved;
    damage.apply(saved.folder(30));
    Choices choices = Choose(saved.dir.path(), false);
    CHECK(AllAre(choices.errors, ""));
    CHECK(AllAre(choices.folders, "step-00000020"));
    // Strictly: refused, and named.
    choices = Choose(saved.dir.path(), true);
    for (const std::string& error : choices.errors) {
      CHECK(error == choices.errors[0]);
      CHECK(Has(error, damage.message));
      CHECK(Has(error, "step-00000030"));
      CHECK(Has(error, "⟦strict_resume⟧: no other checkpoint is taken"));
    }
    // The one before too.
    FlipLastByte(saved.folder(20) / "rank-0001.safetensors");
    choices = Choose(saved.dir.path(), false);
    CHECK(AllAre(choices.folders, "step-00000010"));
    FlipLastByte(saved.folder(10) / "rank-0000.safetensors");
    choices = Choose(saved.dir.path(), false);
    for (const std::string& error : choices.errors) {
      CHECK(Has(error, damage.message));
      CHECK(Has(error, "is intact"));
    }
  }
}

TEST_CASE("checkpoint choice: what is damaged stays, and does not count as one that is kept") {
  const Saved saved;
  FlipLastByte(saved.folder(30) / "rank-0002.safetensors");
  const Choices choices = Choose(saved.dir.path(), false);
  CHECK(choices.damaged == std::vector<std::string>{"step-00000030"});
  for (const int64_t step : {21, 22}) {
    SaveCheckpoint(saved.dir.path(), SmallLayout(2, kRanks), step,
                   {.keep = 2, .spared = choices.damaged});
    CHECK(fs::exists(saved.folder(30)));
  }
  CHECK(fs::exists(saved.folder(21)));
  CHECK(fs::exists(saved.folder(22)));
  CHECK_FALSE(fs::exists(saved.folder(20)));
  CHECK_FALSE(fs::exists(saved.folder(10)));
}

TEST_CASE("checkpoint choice: the newest intact one outlives saves that find the newer damaged") {
  const Saved saved;
  fs::resize_file(saved.folder(30) / "rank-0002.safetensors", 4000);
  fs::remove(saved.folder(20) / "meta.json");
  SaveCheckpoint(saved.dir.path(), SmallLayout(2, kRanks), 31, {.keep = 2});
  CHECK(fs::exists(saved.folder(10)));
  SaveCheckpoint(saved.dir.path(), SmallLayout(2, kRanks), 32, {.keep = 1});
  CHECK_FALSE(fs::exists(saved.folder(10)));
  CHECK_FALSE(fs::exists(saved.folder(31)));
  CHECK(IsConsistent(OpenCheckpoint(saved.folder(32))));
}

TEST_CASE("checkpoint choice: another model is refused, not passed over") {
  const Saved saved;
  ModelSpec spec = SmallModel();
  spec.layers = 3;
  const Choices choices = Choose(saved.dir.path(), false, kRanks, spec);
  for (const std::string& error : choices.errors) CHECK(Has(error, "layers 2, the one to"));
}

TEST_CASE("checkpoint choice: what latest holds does not hide what is intact") {
  for (const char* text : {"", "../../etc", "step-00000099"}) {
    CAPTURE(text);
    const Saved saved;
    std::ofstream(CheckpointsFolder(saved.dir.path()) / "latest") << text;
    CHECK(AllAre(Choose(saved.dir.path(), false).folders, "step-00000030"));
    CHECK(Has(Choose(saved.dir.path(), true).errors[0], "latest: "));
  }
}

TEST_CASE("checkpoint choice: ranks open the shards that they need, not all of them") {
  constexpr int kMany = 8;
  const FastTempDir dir;
  const ParamLayout layout = SmallLayout(3, kMany);
  SaveCheckpoint(dir.path(), layout, 5);
  std::vector<int64_t> opened(kMany);
  const auto table = BuildParamTable(SmallModel());
  const auto errors = AsRanks(kMany, [&](TcpGroup& group) {
    const ResumeChoice choice = ChooseCheckpoint(group, dir.path(), SmallModel(), table, false);
    for (const ShardRange& range : OwnerRanges(layout, group.rank())) {
      std::vector<float> values(range.count);
      choice.source->Read({range.tensor, StateKind::kFirst, range.begin, range.count}, values);
      CHECK(values[0] == StateValue(range.tensor, StateKind::kFirst, range.begin, 5));
    }
    opened[static_cast<size_t>(group.rank())] = choice.source->files_opened();
  });
  CHECK(AllAre(errors, ""));
  CHECK(std::all_of(opened.begin(), opened.end(), [](int64_t files) { return files == 1; }));
}

TEST_CASE("checkpoint choice: more shards than a process may have open files") {
  constexpr int kMany = 100;
  const FastTempDir dir;
  SaveCheckpoint(dir.path(), SmallLayout(3, kMany), 5);
  const CheckpointSource source = OpenCheckpoint(dir.path());
  CHECK(IsConsistent(source));
  const auto open = std::distance(fs::directory_iterator("/proc/self/fd"), {});
  CHECK(open < kMany);
}

}  // namespace
}  // namespace zeroplan
