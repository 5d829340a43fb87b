// Checkpoints without failures: what goes in comes out, whoever asks.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/shard_writer.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

TEST_CASE("shard ranges: ranks cover every tensor once") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world_size : {1, 2, 3, 7, 64}) {
      const ParamLayout layout = SmallLayout(stage, world_size);
      std::vector<uint64_t> next(layout.tensors->size());
      for (int rank = 0; rank < static_cast<int>(layout.shards); ++rank) {
        for (const ShardRange& range : OwnerRanges(layout, rank)) {
          REQUIRE(range.begin == next[static_cast<size_t>(range.tensor)]);
          next[static_cast<size_t>(range.tensor)] += range.count;
        }
      }
      for (size_t i = 0; i < next.size(); ++i) CHECK(next[i] == (*layout.tensors)[i].elements());
    }
  }
}

TEST_CASE("written ranges: order does not matter, overlap and gaps do") {
  WrittenRanges ranges;
  CHECK(ranges.Are(0, 0));
  CHECK(ranges.Add(10, 5));
  CHECK(ranges.Add(20, 5));
  CHECK_FALSE(ranges.Add(12, 1));
  CHECK_FALSE(ranges.Add(14, 7));
  CHECK_FALSE(ranges.Add(9, 2));
  CHECK_FALSE(ranges.Are(10, 15));
  CHECK(ranges.Add(15, 5));
  CHECK(ranges.Are(10, 15));
  CHECK(ranges.Add(8, 2));
  CHECK(ranges.Add(25, 1));
  CHECK(ranges.Are(8, 18));
  CHECK_FALSE(ranges.Are(8, 17));
}

TEST_CASE("checkpoint: saved at one layout, read at any") {
  for (const auto& [stage, world_size] :
       std::vector<std::pair<int, int>>{{0, 1}, {0, 4}, {1, 2}, {2, 3}, {3, 4}, {3, 64}}) {
    CAPTURE(stage);
    CAPTURE(world_size);
    const TempDir dir;
    const ParamLayout layout = SmallLayout(stage, world_size);
    const fs::path folder = SaveCheckpoint(dir.path(), layout, 7, {.world_size = world_size});
    CHECK(folder == fs::path(dir.path()) / "checkpoints/step-00000007");
    const CheckpointSource source = OpenCheckpoint(dir.path());
    CHECK(IsConsistent(source));
    CHECK(source.meta().world_size == world_size);
    CHECK(source.meta().files.size() == layout.shards);
    // The ranges of another layout.
    const ParamLayout other = SmallLayout(2, 5);
    for (int rank = 0; rank < 5; ++rank) {
      for (const ShardRange& range : OwnerRanges(other, rank)) {
        std::vector<float> values(range.count);
        source.Read({range.tensor, StateKind::kSecond, range.begin, range.count}, values);
        for (size_t i = 0; i < values.size(); ++i) {
          REQUIRE(values[i] == StateValue(range.tensor, StateKind::kSecond, range.begin + i, 7));
        }
      }
    }
    std::vector<float> two(2);
    CHECK_THROWS_AS(source.Read({0, StateKind::kMaster, 384 * 16 - 1, 2}, two), CheckFailure);
    CHECK_THROWS_AS(source.Read({0, StateKind::kMaster, ~uint64_t{0}, 2}, two), CheckFailure);
  }
}

TEST_CASE("checkpoint: ranks write and read at the same time") {
  const TempDir dir;
  const ParamLayout layout = SmallLayout(3, 4);
  SaveWith(dir.path(), layout, SmallMeta(3), {}, [&](std::span<StateSink* const> sinks) {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 4; ++rank) {
      ranks.emplace_back([&, sinks, rank] {
        for (const StateKind state : {StateKind::kSecond, StateKind::kMaster, StateKind::kFirst}) {
          for (const ShardRange& range : OwnerRanges(layout, rank)) {
            for (uint64_t i = range.count; i-- > 0;) {  // backwards, one by one
              const uint64_t at = range.begin + i;
              const float value = StateValue(range.tensor, state, at, 3);
              sinks[static_cast<size_t>(rank)]->Write({range.tensor, state, at, 1},
                                                      std::span(&value, 1));
            }
          }
        }
      });
    }
  });
  const CheckpointSource source = OpenCheckpoint(dir.path());
  std::vector<std::jthread> ranks;
  std::array<bool, 4> good{};
  for (size_t rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] { good[rank] = IsConsistent(source); });
  }
  ranks.clear();
  for (const bool rank : good) CHECK(rank);
}

TEST_CASE("checkpoint: meta comes back bit by bit") {
  const TempDir dir;
  CheckpointMeta meta = SmallMeta(12);
  meta.state.loss_sum = 0.1;
  meta.state.grad_norm = -0.0f;
  meta.state.lr = std::numeric_limits<float>::quiet_NaN();
  meta.state.stop_requested = std::numeric_limits<double>::denorm_min();
  meta.state.recent_norm[kSpikeWindow - 1] = -1;
  meta.model.layer_norm_eps = 1.1e-5f;
  meta.run = {{"algorithms", "a\nb \"c\""}, {"", ""}};
  const ParamLayout layout = SmallLayout(1, 2);
  const CheckpointMeta got = ReadCheckpointMeta(SaveWith(
      dir.path(), layout, meta, {}, [&](const auto& sinks) { WriteState(layout, sinks, 12); }));
  CHECK(std::memcmp(&got.state, &meta.state, sizeof meta.state) == 0);
  CHECK(got.seed == meta.seed);
  CHECK(got.samples_consumed == 96);
  CHECK(got.model.layer_norm_eps == meta.model.layer_norm_eps);
  CHECK(got.model.name == "small");
  CHECK(got.model.init_std == meta.model.init_std);
  CHECK(got.run == meta.run);
  CHECK(got.train_tokens == meta.train_tokens);
  CHECK(got.serial == 1);
  CHECK(DigestText("") == "cbf29ce484222325");
  CHECK(DigestText("a") == "af63dc4c8601ec8c");
}

TEST_CASE("checkpoint: the newest stay, leftovers go") {
  const TempDir dir;
  const ParamLayout layout = SmallLayout(1, 2);
  const fs::path checkpoints = CheckpointsFolder(dir.path());
  fs::create_directories(checkpoints / ".tmp-step-00000001/x");
  std::ofstream(checkpoints / ".tmp-file") << "x";
  std::ofstream(checkpoints / "notes.txt") << "mine";
  for (const int64_t step : {10, 20, 30}) SaveCheckpoint(dir.path(), layout, step);
  CHECK(FileNames(checkpoints) ==
        std::vector<std::string>{"latest", "notes.txt", "step-00000020", "step-00000030"});
  // A run started over: its small steps are the newest all the same.
  SaveCheckpoint(dir.path(), layout, 5);
  CHECK(FileNames(checkpoints) ==
        std::vector<std::string>{"latest", "notes.txt", "step-00000005", "step-00000030"});
  CHECK(OpenCheckpoint(dir.path()).meta().step == 5);
  // The same step again.
  CHECK(SaveCheckpoint(dir.path(), layout, 5).filename() == "step-00000005-1");
  CHECK(FileNames(checkpoints) ==
        std::vector<std::string>{"latest", "notes.txt", "step-00000005", "step-00000005-1"});
  SaveCheckpoint(dir.path(), layout, 6, {.keep = 1});
  CHECK(FileNames(checkpoints) == std::vector<std::string>{"latest", "notes.txt", "step-00000006"});
  for (const int64_t step : {7, 8, 9}) SaveCheckpoint(dir.path(), layout, step, {.keep = 3});
  CHECK(FileNames(checkpoints).size() == 5);
  CHECK(IsConsistent(OpenCheckpoint(dir.path())));
}

TEST_CASE("checkpoint: unfinished saves leave nothing, misuse is noticed") {
  const TempDir dir;
  const ParamLayout layout = SmallLayout(1, 2);
  CHECK_FALSE(HasCheckpoint(dir.path()));
  CHECK_THROWS_AS(SaveWith(dir.path(), layout, SmallMeta(1), {},
                           [&](const auto& sinks) {
                             WriteState(layout, sinks, 1);
                             ThrowRuntime("the GPU is gone");
                           }),
                  Error);
  CHECK(FileNames(CheckpointsFolder(dir.path())).empty());
  const auto misuse = [&](const ParamLayout& of, const WriteSinks& write) {
    CHECK_THROWS_AS(SaveWith(dir.path(), of, SmallMeta(1), {.world_size = 2}, write), CheckFailure);
    CHECK(FileNames(CheckpointsFolder(dir.path())).empty());
  };
  misuse(layout, [](const auto&) {});  // nothing was written
  const ShardRange range = OwnerRanges(layout, 1).front();
  const std::vector<float> one(1);
  misuse(layout, [&](const auto& sinks) {  // twice
    for (int i = 0; i < 2; ++i) {
      sinks[1]->Write({range.tensor, StateKind::kMaster, range.begin, 1}, one);
    }
  });
  misuse(layout, [&](const auto& sinks) {  // outside
    sinks[1]->Write({range.tensor, StateKind::kMaster, range.begin + range.count, 1}, one);
  });
  misuse(SmallLayout(0, 2), [&](const auto& sinks) {  // a rank without a part
    sinks[1]->Write({0, StateKind::kMaster, 0, 1}, one);
  });
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { OpenCheckpoint(dir.path()); }),
            "there is no checkpoint to resume from"));
}

TEST_CASE("checkpoint: a step folder itself can be opened") {
  const TempDir dir;
  const ParamLayout layout = SmallLayout(1, 2);
  const fs::path first = SaveCheckpoint(dir.path(), layout, 1);
  SaveCheckpoint(dir.path(), layout, 2);
  CHECK(OpenCheckpoint(first).meta().step == 1);
  CHECK(OpenCheckpoint(first / "").meta().step == 1);
  CHECK(OpenCheckpoint(dir.path()).meta().step == 2);
  fs::remove(CheckpointsFolder(dir.path()) / "latest");
  CHECK(HasCheckpoint(dir.path()));
  CHECK(OpenCheckpoint(dir.path()).meta().step == 2);  // with a warning
}

}  // namespace
}  // namespace zeroplan
