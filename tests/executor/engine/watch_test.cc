// Ranks that get nowhere: who is named, who is let go, and when the process ends.
#include "executor/engine/watch.h"

#include <doctest/doctest.h>

#include <condition_variable>
#include <mutex>
#include <optional>

#include "executor/engine/local_ranks.h"
#include "executor/process/single_process.h"
#include "executor/train/run_parts.h"
#include "tests/error_of.h"
#include "tests/executor/engine/small_training.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

using std::chrono::milliseconds;

class Flag {
 public:
  void Raise() {
    {
      const std::lock_guard lock(mutex_);
      raised_ = true;
    }
    changed_.notify_all();
  }
  bool Await(std::chrono::seconds limit = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [this] { return raised_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
};

// Two processes, of which this is one.
class OneOfTwo : public SingleProcess {
 public:
  OneOfTwo() { place_.world_size = 2; }
  const ProcessPlace& place() const override { return place_; }
  void FailWith(ExitCode code, const std::string& message) noexcept override {
    CHECK(code == ExitCode::kRuntime);
    failed_with = message;
    failed.Raise();
  }

  Flag failed;
  std::string failed_with;

 private:
  ProcessPlace place_;
};

// What the watch wrote and whether it ended the process.
class Outcome {
 public:
  Flag ended;

  // The watch may still be writing.
  std::string written() const {
    const std::lock_guard lock(mutex_);
    return written_;
  }
  WatchOptions Options(ProcessGroup* group = nullptr) {
    WatchOptions options;
    options.group = group;
    options.look_every = milliseconds(10);
    options.patience = milliseconds(400);
    options.grace = options.grace_alone = milliseconds(100);
    options.write = [this](std::string_view text) {
      const std::lock_guard lock(mutex_);
      written_ += text;
    };
    options.end = [this] { ended.Raise(); };
    return options;
  }

 private:
  mutable std::mutex mutex_;
  std::string written_;
};

EngineOptions WatchedBy(Watch& watch) {
  EngineOptions options;
  options.watch = &watch;
  return options;
}

TEST_CASE("watch: a rank that is stuck is named, the others are let go, then the process ends") {
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    const Program program = Lower(small_training::SmallModel(), small_training::Setup(stage, 3, 2));
    Outcome outcome;
    Watch watch(outcome.Options());
    EngineOptions options = WatchedBy(watch);
    options.threads_per_rank = 1;
    Engine engine(program, options);
    engine.Init();
    const small_training::CountingBatch batch{3};
    watch.Expect("step 1", Watch::Seconds(60));
    engine.Step(batch);
    watch.Expect("step 2", Watch::Seconds(0.3));
    bool ended = false;
    const auto fill = [&](int rank, int64_t m, std::span<int32_t> inputs,
                          std::span<int32_t> targets) {
      batch(rank, m, inputs, targets);
      // Held until the watch has given the process up.
      if (rank == 1 && m == 1) ended = outcome.ended.Await();
    };
    const std::string message = ErrorOf(ExitCode::kRuntime, [&] { engine.Step(fill); });
    CHECK(ended);
    CHECK(Has(message, "step 2 has taken"));
    CHECK(Has(message, "rank 1 holds it up: it reads the batch of micro-step 1"));
    CHECK_FALSE(message.find("rank 0 holds") != std::string::npos);
    // Every rank said what it waits for: instruction, section, stream, number of the collective.
    CHECK(Has(outcome.written(), "rank 0 waits for the others in its collective"));
    CHECK(Has(outcome.written(), "of section "));
    CHECK(Has(outcome.written(), stage == 0 ? "reduce   [only|last] all_reduce" : "micro-step 1"));
    CHECK(Has(outcome.written(), "rank 2 waits for the others"));
    CHECK(Has(outcome.written(), "did not end within"));
    CHECK(ErrorOf(ExitCode::kRuntime, [&] { engine.Step(batch); }) == message);
  }
}

TEST_CASE("watch: what ends in time, or has no limit, is let be") {
  const Program program = Lower(small_training::SmallModel(), small_training::Setup(1, 2, 1));
  Outcome outcome;
  {
    Watch watch(outcome.Options());
    Engine engine(program, WatchedBy(watch));
    engine.Init();
    for (int step = 0; step < 5; ++step) {
      watch.Expect("step", Watch::Seconds(20));
      engine.Step(small_training::CountingBatch{2});
    }
    watch.Expect("for ever", Watch::Seconds(0));
    std::this_thread::sleep_for(milliseconds(100));
    watch.Expect("short", Watch::Seconds(0.05));
    watch.Rest();
    std::this_thread::sleep_for(milliseconds(100));
  }
  CHECK(outcome.written().empty());
}

TEST_CASE("watch: a limit that renews is one of standing still") {
  const Program program = Lower(small_training::SmallModel(), small_training::Setup(0, 1, 1));
  Outcome outcome;
  Watch watch(outcome.Options());
  Engine engine(program, WatchedBy(watch));
  engine.Init();
  watch.Expect("many steps", Watch::Seconds(0.3), /*renews=*/true);
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < milliseconds(900)) {
    engine.Step(small_training::CountingBatch{1});
  }
  CHECK(outcome.written().empty());
  REQUIRE(outcome.ended.Await());  // nobody is in the engine now
  CHECK(Has(outcome.written(), "many steps has taken 0.3 s without getting anywhere"));
  CHECK(Has(outcome.written(), "rank 0 is between two calls of the engine"));
}

// Ranks as the test says.
struct MadeUp : Watched {
  std::vector<Standing> standings;
  std::string problem;
  std::optional<std::string> interrupted;

  std::vector<Standing> Standings() const override { return standings; }
  void Moves(std::vector<uint64_t>& moves) const override { moves.assign(standings.size(), 0); }
  std::string Problem() const override { return problem; }
  void Interrupt(const std::exception_ptr& cause) noexcept override {
    interrupted = ErrorOf(ExitCode::kRuntime, [&] { std::rethrow_exception(cause); });
  }
};

TEST_CASE("watch: of several processes the one that holds the others up speaks first") {
  const auto seconds_to_fail = [](bool holds_up, std::string* message) {
    OneOfTwo group;
    Outcome outcome;
    MadeUp ranks;
    ranks.standings = {{1, "waits for its GPU", holds_up}};
    const auto begin = std::chrono::steady_clock::now();
    {
      Watch watch(outcome.Options(&group));
      watch.Observe(&ranks);
      watch.Expect("step 7", Watch::Seconds(0.05));
      REQUIRE(group.failed.Await());
      REQUIRE(outcome.ended.Await());
    }
    *message = group.failed_with;
    CHECK(ranks.interrupted == group.failed_with);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::string waits, holds;
  CHECK(seconds_to_fail(false, &waits) > 0.45);  // the limit and the patience
  CHECK(Has(waits, "step 7 has taken 0.1 s; rank 1 waits for its GPU, for 0."));
  seconds_to_fail(true, &holds);
  CHECK(Has(holds, "rank 1 holds it up: it waits for its GPU"));
}

TEST_CASE("watch: a caller that meets other processes does not hold them up") {
  for (const bool meets : {false, true}) {
    OneOfTwo group;
    Outcome outcome;
    MadeUp ranks;
    ranks.standings = {{1, "is between two calls of the engine", true, true}};
    Watch watch(outcome.Options(&group));
    std::optional<Watch::Meeting> meeting;
    if (meets) meeting.emplace(watch);
    watch.Observe(&ranks);
    watch.Expect("batch 0", Watch::Seconds(0.05));
    REQUIRE(group.failed.Await());
    REQUIRE(outcome.ended.Await());
    CHECK(Has(group.failed_with, meets ? "; rank 1 meets the other processes"
                                       : "rank 1 holds it up: it is between two calls"));
  }
}

TEST_CASE("watch: what a library finds wrong fails the run at once") {
  OneOfTwo group;
  Outcome outcome;
  MadeUp ranks;
  ranks.standings = {{0, "waits", false}};
  ranks.problem = "NCCL: remote process exited";
  Watch watch(outcome.Options(&group));
  watch.Expect("step 3", Watch::Seconds(60));
  watch.Observe(&ranks);
  REQUIRE(group.failed.Await());
  CHECK(group.failed_with == "step 3: NCCL: remote process exited");
  REQUIRE(outcome.ended.Await());
}

TEST_CASE("step limit: asked for, or from what is known") {
  StepLimit limit(std::nullopt);
  CHECK(limit.seconds() == 3600);
  limit.Predict(2);
  CHECK(limit.seconds() == 300);
  limit.Predict(30);
  CHECK(limit.seconds() == 600);
  for (int i = 0; i < 40; ++i) limit.Note(i < 8 ? 1000 : 50);
  CHECK(limit.seconds() == 1000);  // the first are forgotten
  CHECK(limit.still_seconds() == 1800);
  StepLimit asked(7.5);
  asked.Note(100);
  CHECK(asked.seconds() == 7.5);
  CHECK(asked.still_seconds() == 1800);
  StepLimit off(0);
  CHECK(off.seconds() == 0);
  CHECK(off.still_seconds() == 0);
}

}  // namespace
}  // namespace zeroplan
