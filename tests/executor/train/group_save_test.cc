// Checkpoints that several ranks write together, and what they do when one of them cannot.
#include "executor/train/group_save.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>

#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/process/process_group.h"
#include "executor/train/run_agreement.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/executor/process/forked_ranks.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

// Fails or dies where a file whose name holds `part` is about to be synced.
class AtSync : public IoHook {
 public:
  AtSync(std::string part, bool die) : part_(std::move(part)), die_(die) {}
  int Before(IoStep step, const fs::path& path) override {
    const bool mine = path.filename().string().find(part_) != std::string::npos;
    if (step != IoStep::kSync || !mine) return 0;
    if (die_) raise(SIGKILL);
    return ENOSPC;
  }

 private:
  std::string part_;
  bool die_;
};

fs::path SaveAsRank(ProcessGroup& group, const fs::path& dir, const ParamLayout& layout,
                    int64_t step, IoHook* hook = nullptr) {
  GroupSave save;
  save.save_dir = dir;
  save.layout = &layout;
  save.first_local_rank = group.rank();
  save.hook = hook;
  CheckpointMeta meta = SmallMeta(step);
  meta.state = {};
  meta.world_size = group.world_size();
  return SpreadFailure(group, [&] {
    return SaveTogether(group, save, meta, [&](std::span<StateSink* const> sinks) {
      ZEROPLAN_CHECK(sinks.size() == 1);
      return WriteRank(layout, group.rank(), *sinks[0], step);
    });
  });
}

TEST_CASE("nobody waits for a folder once the run has failed") {
  const std::vector<std::string> errors = AsRanks(2, [](TcpGroup& group) {
    if (group.rank() == 0) {
      group.Fail("no more");
      group.ThrowIfFailed();
    }
    Await([&] { return group.failed(); });
    NeedShared(group, "/nowhere/that/any/disk/has");
  });
  // Who had waited would say that it cannot see the folder.
  CHECK(errors[1] == "rank 0: no more");
}

TEST_CASE("ranks save together what one process reads, at every way of sharding") {
  for (const int stage : {0, 1, 3}) {
    CAPTURE(stage);
    const FastTempDir dir;
    const ParamLayout layout = SmallLayout(stage, 3);
    std::vector<std::string> folders(3);
    const auto errors = AsRanks(3, [&](TcpGroup& group) {
      for (const int64_t step : {4, 8, 12}) {
        folders[static_cast<size_t>(group.rank())] =
            SaveAsRank(group, dir.path(), layout, step).string();
      }
    });
    CHECK(ErrorsOf(errors) == "");
    CHECK(folders[1] == folders[0]);
    CHECK(folders[2] == folders[0]);
    const CheckpointSource source = OpenCheckpoint(dir.path());
    CHECK(source.meta().step == 12);
    CHECK(source.meta().world_size == 3);
    CHECK(source.meta().files.size() == layout.shards);
    CHECK(IsConsistent(source));
    CHECK(NothingUnfinished(dir.path()));
    CHECK(ListCheckpoints(dir.path()).size() == 2);
  }
}

TEST_CASE("a rank that cannot write fails the save everywhere and harms nothing") {
  for (const int failing : {0, 1, 2}) {
    CAPTURE(failing);
    const FastTempDir dir;
    const ParamLayout layout = SmallLayout(2, 3);
    const auto errors = AsRanks(3, [&](TcpGroup& group) {
      SaveAsRank(group, dir.path(), layout, 4);
      AtSync hook("rank-", /*die=*/false);
      SaveAsRank(group, dir.path(), layout, 8, group.rank() == failing ? &hook : nullptr);
    });
    for (const std::string& error : errors) {
      CHECK(error == errors[0]);
      CHECK(Has(error, "rank " + std::to_string(failing) + ": "));
      CHECK(Has(error, "No space left"));
    }
    const CheckpointSource source = OpenCheckpoint(dir.path());
    CHECK(source.meta().step == 4);
    CHECK(IsConsistent(source));
  }
}

TEST_CASE("rank 0 failing to commit fails the others") {
  const FastTempDir dir;
  const ParamLayout layout = SmallLayout(2, 2);
  const auto errors = AsRanks(2, [&](TcpGroup& group) {
    AtSync hook("meta.json", /*die=*/false);
    SaveAsRank(group, dir.path(), layout, 8, group.rank() == 0 ? &hook : nullptr);
  });
  for (const std::string& error : errors) CHECK(Has(error, "rank 0: "));
  CHECK_FALSE(HasCheckpoint(dir.path()));
  CHECK(NothingUnfinished(dir.path()));
}

// Fails the first `times` steps of one kind, at files whose name holds `part`.
class Failing : public IoHook {
 public:
  Failing(IoStep step, std::string part, int times, int error)
      : step_(step), part_(std::move(part)), times_(times), error_(error) {}
  int Before(IoStep step, const fs::path& path) override {
    const bool mine = step == step_ && path.filename().string().find(part_) != std::string::npos;
    return mine && times_-- > 0 ? error_ : 0;
  }

 private:
  IoStep step_;
  std::string part_;
  std::atomic<int> times_;
  int error_;
};

TEST_CASE("save: an error that may pass is met again, and nothing half is left") {
  const ParamLayout layout = SmallLayout(2, 2);
  const struct {
    IoStep step;
    const char* part;
  } steps[] = {{IoStep::kCreate, "rank-0001"},         {IoStep::kWrite, "rank-0000"},
               {IoStep::kReserve, "rank-0000"},        {IoStep::kRename, "step-00000008"},
               {IoStep::kMakeFolder, "step-00000008"}, {IoStep::kRename, "latest"}};
  for (const auto& [step, part] : steps) {
    for (const int error : {EIO, ESTALE, EAGAIN}) {
      CAPTURE(part);
      const FastTempDir dir;
      SaveCheckpoint(dir.path(), layout, 4);
      Failing hook(step, part, 2, error);
      CHECK(SaveCheckpoint(dir.path(), layout, 8, {.hook = &hook}).filename() == "step-00000008");
      CHECK(IsConsistent(OpenCheckpoint(dir.path())));
      CHECK(NothingUnfinished(dir.path()));
    }
  }
}

TEST_CASE("save: after a failed fsync all of it is written anew, by every rank") {
  for (const int failing : {0, 1}) {
    for (const int times : {1, 2, 3}) {
      CAPTURE(failing);
      CAPTURE(times);
      const FastTempDir dir;
      const ParamLayout layout = SmallLayout(2, 2);
      Failing hook(IoStep::kSync, failing == 0 ? "meta.json" : "rank-0001", times, EIO);
      const auto errors = AsRanks(2, [&](TcpGroup& group) {
        SaveAsRank(group, dir.path(), layout, 4);
        SaveAsRank(group, dir.path(), layout, 8, group.rank() == failing ? &hook : nullptr);
      });
      for (const std::string& error : errors) {
        CHECK(error.empty() == (times < 3));
        if (times == 3) CHECK(Has(error, "Input/output error"));
      }
      const CheckpointSource source = OpenCheckpoint(dir.path());
      CHECK(source.meta().step == (times < 3 ? 8 : 4));
      CHECK(IsConsistent(source));
      CHECK(NothingUnfinished(dir.path()));
    }
  }
}

TEST_CASE("a rank killed while it saves leaves the checkpoint before") {
  for (const int victim : {0, 1}) {
    CAPTURE(victim);
    const FastTempDir dir;
    const ParamLayout layout = SmallLayout(2, 2);
    const auto ends = AsForkedRanks(victim, [&](TcpGroup& group) {
      SaveAsRank(group, dir.path(), layout, 4);
      AtSync hook("rank-", /*die=*/true);
      SaveAsRank(group, dir.path(), layout, 8, group.rank() == victim ? &hook : nullptr);
    });
    for (int rank = 0; rank < 2; ++rank) {
      const int status = ends[static_cast<size_t>(rank)];
      if (rank == victim) {
        CHECK(WIFSIGNALED(status));
      } else {
        CHECK(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 4);
      }
    }
    const CheckpointSource source = OpenCheckpoint(dir.path());
    CHECK(source.meta().step == 4);
    CHECK(IsConsistent(source));
    // What was left is cleared by the next save.
    SaveCheckpoint(dir.path(), layout, 12);
    CHECK(NothingUnfinished(dir.path()));
  }
}

TEST_CASE("ranks with different plans, data or options are told what differs") {
  const auto errors = AsRanks(3, [](TcpGroup& group) {
    AgreeOnFacts(group, {{"program", "abc"}, {"--steps", "100"}});
    SpreadFailure(group, [&] {
      AgreeOnFacts(group, {{"program", "abc"}, {"--steps", group.rank() == 2 ? "200" : "100"}});
    });
  });
  for (const std::string& error : errors) {
    CHECK(error == errors[0]);
    CHECK(Has(error, "--steps: rank 2 has 200, rank 0 100"));
  }
}

}  // namespace
}  // namespace zeroplan
