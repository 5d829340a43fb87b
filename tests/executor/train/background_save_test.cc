// Saves that are written beside steps: that no rank waits for another's disk, what errors and
// deaths leave, and who is told.
#include "executor/train/background_save.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <thread>

#include "core/base/log.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/process/process_group.h"
#include "tests/executor/checkpoint/checkpoint_fixture.h"
#include "tests/executor/engine/fake_time.h"
#include "tests/executor/process/forked_ranks.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// At steps of one kind on files whose name holds `part`: the first `times` fail with `error`, or
// wait until they are let go (kHold).
class AtFile : public IoHook {
 public:
  static constexpr int kHold = -1;
  AtFile(IoStep step, std::string part, int error, int times = 1 << 30)
      : step_(step), part_(std::move(part)), error_(error), times_(times) {}
  int Before(IoStep step, const fs::path& path) override {
    const bool mine = step == step_ && path.filename().string().find(part_) != std::string::npos;
    if (!mine || times_-- <= 0) return 0;
    reached_.store(true);
    if (error_ != kHold) return error_;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return released_; });
    return 0;
  }
  void Release() {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
    }
    changed_.notify_all();
  }
  bool reached() const { return reached_.load(); }

 private:
  const IoStep step_;
  const std::string part_;
  const int error_;
  std::atomic<int> times_;
  std::atomic<bool> reached_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
};

// One of the ranks of `group`, each a process of one rank. `step`: of what lies in its copy.
struct Rank {
  Rank(ProcessGroup& group, const fs::path& dir, const ParamLayout& layout, IoHook* hook = nullptr)
      : group(group),
        save(group, Options(group, dir, layout, hook),
             [this, &layout](int, StateSink& sink) { Write(layout, sink); }) {}

  static GroupSave Options(ProcessGroup& group, const fs::path& dir, const ParamLayout& layout,
                           IoHook* hook) {
    GroupSave save;
    save.save_dir = dir;
    save.layout = &layout;
    save.first_local_rank = group.rank();
    save.hook = hook;
    return save;
  }
  void Write(const ParamLayout& layout, StateSink& sink) const {
    WriteRank(layout, group.rank(), sink, step);
  }
  void Begin(int64_t at) {
    step = at;
    CheckpointMeta meta = SmallMeta(at);
    meta.world_size = group.world_size();
    save.Begin(meta);
  }
  // Takes steps until it is saved; the number of steps.
  int Steps() {
    for (int steps = 1;; ++steps) {
      std::this_thread::sleep_for(milliseconds(2));
      if (const auto found = save.Look(0.002)) {
        folder = *found;
        return steps;
      }
    }
  }
  void SaveAndWait(int64_t at) {
    Begin(at);
    folder = save.Wait();
  }

  ProcessGroup& group;
  int64_t step = 0;
  fs::path folder;
  BackgroundSave save;
};

TEST_CASE("saves beside the steps of several ranks are what one process reads") {
  for (const int stage : {0, 1, 3}) {
    CAPTURE(stage);
    const FastTempDir dir;
    const ParamLayout layout = SmallLayout(stage, 3);
    std::vector<std::string> folders(3);
    const auto errors = AsRanks(3, [&](TcpGroup& group) {
      Rank rank(group, dir.path(), layout);
      for (const int64_t step : {4, 8, 12}) {
        rank.Begin(step);
        CHECK(rank.save.under_way());
        step == 8 ? rank.folder = rank.save.Wait(), 0 : rank.Steps();
        CHECK_FALSE(rank.save.under_way());
      }
      folders[static_cast<size_t>(group.rank())] = rank.folder.string();
    });
    CHECK(ErrorsOf(errors) == "");
    CHECK(fs::path(folders[0]).filename() == "step-00000012");
    CHECK(folders[1] == folders[0]);
    CHECK(folders[2] == folders[0]);
    const CheckpointSource source = OpenCheckpoint(dir.path());
    CHECK(source.meta().step == 12);
    CHECK(source.meta().files.size() == layout.shards);
    CHECK(IsConsistent(source));
    CHECK(NothingUnfinished(dir.path()));
    CHECK(ListCheckpoints(dir.path()).size() == 2);
  }
}

TEST_CASE(
    "no rank's steps wait for a disk that hangs, and nothing is committed before it answers") {
  const struct {
    int rank;
    IoStep step;
    const char* part;
  } holds[] = {{0, IoStep::kMakeFolder, "step-00000008"},
               {1, IoStep::kWrite, "rank-0001"},
               {2, IoStep::kSync, "rank-0002"},
               {0, IoStep::kSync, "meta.json"},
               {0, IoStep::kRename, "latest"}};
  for (const auto& hold : holds) {
    CAPTURE(hold.rank);
    CAPTURE(hold.part);
    const FastTempDir dir;
    const ParamLayout layout = SmallLayout(2, 3);
    AtFile hook(hold.step, hold.part, AtFile::kHold);
    const auto errors = AsRanks(3, [&](TcpGroup& group) {
      {
        Rank before(group, dir.path(), layout);
        before.SaveAndWait(4);
      }
      Rank rank(group, dir.path(), layout, group.rank() == hold.rank ? &hook : nullptr);
      rank.Begin(8);
      // Far more steps, and meetings, than a save has phases, after the disk has stopped answering.
      // As many on every rank: rank 0 says when.
      for (int held = 0; held < 100;) {
        CHECK_FALSE(rank.save.Look(0.05).has_value());
        std::this_thread::sleep_for(milliseconds(1));
        held += group.AllGather(hook.reached() ? "held" : "").front() == "held" ? 1 : 0;
      }
      CHECK(OpenCheckpoint(dir.path()).meta().step == 4);
      group.Barrier();
      if (group.rank() == hold.rank) hook.Release();
      rank.Steps();
    });
    CHECK(ErrorsOf(errors) == "");
    CHECK(OpenCheckpoint(dir.path()).meta().step == 8);
    CHECK(IsConsistent(OpenCheckpoint(dir.path())));
    CHECK(NothingUnfinished(dir.path()));
  }
}

TEST_CASE("an error of any rank's writer reaches all of them, with its name, and harms nothing") {
  const struct {
    int rank;
    const char* part;
  } failing[] = {{0, "rank-"}, {1, "rank-"}, {2, "rank-"}, {0, "meta.json"}};
  for (const auto& [failing_rank, part] : failing) {
    for (const bool waits : {false, true}) {
      CAPTURE(failing_rank);
      CAPTURE(part);
      const FastTempDir dir;
      const ParamLayout layout = SmallLayout(2, 3);
      const auto errors = AsRanks(3, [&](TcpGroup& group) {
        SpreadFailure(group, [&] {
          AtFile hook(IoStep::kSync, part, ENOSPC);
          {
            Rank before(group, dir.path(), layout);
            before.SaveAndWait(4);
          }
          Rank rank(group, dir.path(), layout, group.rank() == failing_rank ? &hook : nullptr);
          rank.Begin(8);
          waits ? rank.folder = rank.save.Wait(), 0 : rank.Steps();
        });
      });
      for (const std::string& error : errors) {
        CHECK(error == errors[0]);
        CHECK(Has(error, "rank " + std::to_string(failing_rank) + ": "));
        CHECK(Has(error, "No space left"));
      }
      CHECK(OpenCheckpoint(dir.path()).meta().step == 4);
      CHECK(IsConsistent(OpenCheckpoint(dir.path())));
      CHECK(NothingUnfinished(dir.path()));
    }
  }
}

TEST_CASE("an error that may pass has all ranks write the copy anew, three times at most") {
  for (const int failing : {0, 1}) {
    for (const int times : {1, 2, 3}) {
      CAPTURE(failing);
      CAPTURE(times);
      const FastTempDir dir;
      const ParamLayout layout = SmallLayout(2, 2);
      AtFile hook(IoStep::kSync, failing == 0 ? "meta.json" : "rank-0001", EIO, times);
      const auto errors = AsRanks(2, [&](TcpGroup& group) {
        SpreadFailure(group, [&] {
          Rank rank(group, dir.path(), layout, group.rank() == failing ? &hook : nullptr);
          rank.Begin(8);
          rank.Steps();
        });
      });
      for (const std::string& error : errors) {
        CHECK(error.empty() == (times < 3));
        if (times == 3) {
          CHECK(Has(error, "rank " + std::to_string(failing) + ": "));
          CHECK(Has(error, "Input/output error"));
        }
      }
      CHECK(HasCheckpoint(dir.path()) == (times < 3));
      if (times < 3) CHECK(IsConsistent(OpenCheckpoint(dir.path())));
      CHECK(NothingUnfinished(dir.path()));
    }
  }
}

// Dies at the `at`-th step of a save.
class Dying : public IoHook {
 public:
  explicit Dying(int at) : at_(at) {}
  int Before(IoStep, const fs::path&) override {
    if (count_++ == at_) _exit(9);  // as SIGKILL: no destructors, no flushing
    return 0;
  }

 private:
  const int at_;
  std::atomic<int> count_{0};
};

TEST_CASE("death at any step of a background save leaves the checkpoint before or the new one") {
  const ParamLayout layout = SmallLayout(2, 2);
  int64_t newest = 4;
  int at = 0;
  for (bool died = true; died; ++at) {
    const FastTempDir dir;
    SaveCheckpoint(dir.path(), layout, 3);
    SaveCheckpoint(dir.path(), layout, 4);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      Dying hook(at);
      SingleProcess alone;
      GroupSave save = Rank::Options(alone, dir.path(), layout, &hook);
      save.local_rank_count = 2;
      BackgroundSave beside(alone, save, [&](int index, StateSink& sink) {
        class Drop : public StateSink {
         public:
          void Write(const TensorRange&, std::span<const float>) override {}
        } drop;
        std::vector<StateSink*> sinks(2, &drop);
        sinks[static_cast<size_t>(index)] = &sink;
        WriteState(layout, sinks, 8);
      });
      CheckpointMeta meta = SmallMeta(8);
      meta.world_size = 2;
      beside.Begin(meta);
      while (!beside.Look(0.001)) std::this_thread::sleep_for(milliseconds(1));
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    REQUIRE(WIFEXITED(status));
    died = WEXITSTATUS(status) == 9;
    REQUIRE((died || WEXITSTATUS(status) == 0));
    const CheckpointSource source = OpenCheckpoint(dir.path());
    CHECK(IsConsistent(source));
    CHECK(source.meta().step >= newest);  // once new, it stays new at later deaths
    newest = source.meta().step;
    SaveCheckpoint(dir.path(), layout, 12);
    CHECK(NothingUnfinished(dir.path()));
  }
  CHECK(newest == 8);
  CHECK(at > 20);
}

// As processes, by fork(); `victim` dies at the `at`-th step of its second save. Whether it did.
bool DiesAlone(const FastTempDir& dir, const ParamLayout& layout, int victim, int at) {
  const auto ends = AsForkedRanks(victim, [&](TcpGroup& group) {
    {
      Rank before(group, dir.path(), layout);
      before.SaveAndWait(4);
    }
    Dying hook(at);
    Rank dying(group, dir.path(), layout, group.rank() == victim ? &hook : nullptr);
    dying.Begin(8);
    dying.Steps();
    group.Barrier();
  });
  int codes[2];
  for (int rank = 0; rank < 2; ++rank) {
    const int status = ends[static_cast<size_t>(rank)];
    codes[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  const bool died = codes[victim] == 9;
  CHECK(codes[1 - victim] == (died ? 4 : 0));
  if (!died) CHECK(codes[victim] == 0);
  return died;
}

TEST_CASE("a rank killed at any step of its writer leaves the checkpoint before or the new one") {
  const ParamLayout layout = SmallLayout(2, 2);
  for (const int victim : {0, 1}) {
    CAPTURE(victim);
    int64_t newest = 4;
    int at = 0;
    for (bool died = true; died; ++at) {
      CAPTURE(at);
      const FastTempDir dir;
      died = DiesAlone(dir, layout, victim, at);
      const CheckpointSource source = OpenCheckpoint(dir.path());
      CHECK(IsConsistent(source));
      CHECK(source.meta().step >= newest);
      newest = source.meta().step;
      // Without all files there is no new one, whoever is missing.
      if (died && victim == 1) CHECK(source.meta().step == 4);
      SaveCheckpoint(dir.path(), layout, 12);
      CHECK(NothingUnfinished(dir.path()));
    }
    CHECK(newest == 8);
    CHECK(at > (victim == 0 ? 15 : 3));
  }
}

TEST_CASE("a background save that is given up leaves nothing, and does not keep the run") {
  const FastTempDir dir;
  const ParamLayout layout = SmallLayout(2, 1);
  SaveCheckpoint(dir.path(), layout, 4);
  SingleProcess alone;
  const ShardRange all = OwnerRanges(layout, 0).front();
  REQUIRE(all.count > 1'000);
  std::atomic<uint64_t> written = 0;
  {
    BackgroundSave save(alone, Rank::Options(alone, dir.path(), layout, nullptr),
                        [&](int, StateSink& sink) {
                          // Many seconds' work, if it is not given up.
                          for (; written < all.count; ++written) {
                            sink.Write({all.tensor, StateKind::kMaster, all.begin + written, 1},
                                       std::vector<float>{1.0f});
                            if (written > 30) std::this_thread::sleep_for(milliseconds(10));
                          }
                        });
    save.Begin(SmallMeta(8));
    Await([&] { return save.moves() >= 20; });
    CHECK(Has(save.Doing(), "saving step 8: rank 0 writes its files in "));
    CHECK_FALSE(save.Look(1).has_value());
  }
  CHECK(written < all.count);
  CHECK(OpenCheckpoint(dir.path()).meta().step == 4);
  CHECK(NothingUnfinished(dir.path()));
}

struct Watching {
  WatchOptions Options() {
    WatchOptions options;
    options.look_every = milliseconds(10);
    options.grace = options.grace_alone = milliseconds(50);
    options.write = [this](std::string_view text) { written += text; };
    options.end = [this] { ended.store(true); };
    return options;
  }
  std::string written;
  std::atomic<bool> ended{false};
};

TEST_CASE("watch: a writer that hangs is found and named") {
  const FastTempDir dir;
  const ParamLayout layout = SmallLayout(2, 1);
  AtFile hook(IoStep::kSync, "rank-0000", AtFile::kHold);
  Watching watching;
  std::optional<Watch> watch(std::in_place, watching.Options());
  SingleProcess alone;
  BackgroundSave save(alone, Rank::Options(alone, dir.path(), layout, &hook),
                      [&](int, StateSink& sink) {
                        std::vector<StateSink*> sinks = {&sink};
                        WriteState(layout, sinks, 8);
                      });
  save.Begin(SmallMeta(8));
  Await([&] { return hook.reached(); });
  watch->ObserveBeside(&save, Watch::Seconds(0.4));
  Await([&] { return watching.ended.load(); });
  hook.Release();
  CHECK(save.Wait().filename() == "step-00000008");
  watch->ObserveBeside(nullptr, Watch::Seconds(0));
  watch.reset();  // it writes no more
  CHECK(Has(watching.written, "saving step 8: rank 0 writes its files in "));
  CHECK(Has(watching.written, "without getting anywhere"));
  CHECK(Has(watching.written, "did not end within"));
}

TEST_CASE("watch: a writer that is slow but gets on, or is at rest, is let be") {
  const FastTempDir dir;
  const ParamLayout layout = SmallLayout(2, 1);
  FakeTime time;
  Watching watching;
  WatchOptions options = watching.Options();
  time.Drive(options);
  std::optional<Watch> watch(std::in_place, options);
  SingleProcess alone;
  BackgroundSave save(alone, Rank::Options(alone, dir.path(), layout, nullptr),
                      [&](int, StateSink& sink) {
                        for (uint64_t i = 0; i < 6; ++i) {
                          time.Pass(milliseconds(100));
                          sink.Write({0, StateKind::kMaster, 5 * i, 5}, std::vector<float>(5));
                        }
                        ThrowRuntime("enough");
                      });
  watch->ObserveBeside(&save, Watch::Seconds(0.25));
  save.Begin(SmallMeta(8));
  CHECK_THROWS_WITH(save.Wait(), "enough");
  time.Pass(milliseconds(500));
  watch->ObserveBeside(nullptr, Watch::Seconds(0));
  watch.reset();
  CHECK_FALSE(watching.ended.load());
  CHECK(watching.written.empty());
}

}  // namespace
}  // namespace zeroplan
