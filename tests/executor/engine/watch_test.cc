// Ranks that get nowhere: who is named, who is let go, and when the process ends.
#include "executor/engine/watch.h"

#include <doctest/doctest.h>

#include <condition_variable>
#include <mutex>
#include <optional>

#include "executor/engine/local_ranks.h"
#include "executor/process/process_group.h"
#include "executor/train/run_parts.h"
#include "tests/error_of.h"
#include "tests/executor/engine/fake_time.h"
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
  void Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return raised_; });
  }
  bool raised() {
    const std::lock_guard lock(mutex_);
    return raised_;
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
    std::string message, written;
    // Within the limit the others have to come to where they wait for rank 1.
    const auto names_it = [&](milliseconds limit) {
      Outcome outcome;
      Watch watch(outcome.Options());
      EngineOptions options = WatchedBy(watch);
      options.threads_per_rank = 1;
      Engine engine(program, options);
      engine.Init();
      const small_training::CountingBatch batch{3};
      watch.Expect("step 1", kNoLimit);
      engine.Step(batch);
      watch.Expect("step 2", limit);
      const auto fill = [&](int rank, int64_t m, std::span<int32_t> inputs,
                            std::span<int32_t> targets) {
        batch(rank, m, inputs, targets);
        // Held until the watch has given the process up.
        if (rank == 1 && m == 1) outcome.ended.Await();
      };
      message = ErrorOf(ExitCode::kRuntime, [&] { engine.Step(fill); });
      written = outcome.written();
      CHECK(outcome.ended.raised());
      CHECK(Has(message, "step 2 has taken"));
      CHECK(Has(written, "did not end within"));
      CHECK(ErrorOf(ExitCode::kRuntime, [&] { engine.Step(batch); }) == message);
      // Every rank said what it waits for: instruction, section, stream, number of the collective.
      return message.find("rank 1 holds it up: it reads the batch of micro-step 1") !=
                 std::string::npos &&
             message.find("rank 0 holds") == std::string::npos &&
             written.find("rank 0 waits for the others in its collective") != std::string::npos &&
             written.find("of section ") != std::string::npos &&
             written.find(stage == 0 ? "reduce   [only|last] all_reduce" : "micro-step 1") !=
                 std::string::npos &&
             written.find("rank 2 waits for the others") != std::string::npos;
    };
    CHECK_MESSAGE(WithLongerLimits(milliseconds(300), names_it), message, "\n", written);
  }
}

TEST_CASE("watch: what ends in time, or has no limit, is let be") {
  const Program program = Lower(small_training::SmallModel(), small_training::Setup(1, 2, 1));
  FakeTime time;
  Outcome outcome;
  {
    WatchOptions options = outcome.Options();
    time.Drive(options);
    Watch watch(options);
    Engine engine(program, WatchedBy(watch));
    engine.Init();
    for (int step = 0; step < 5; ++step) {
      watch.Expect("step", Watch::Seconds(0.1));
      engine.Step(small_training::CountingBatch{2});
      time.Pass(milliseconds(60));
    }
    watch.Expect("for ever", Watch::Seconds(0));
    time.Pass(milliseconds(400));
    watch.Expect("short", Watch::Seconds(0.05));
    time.Pass(milliseconds(40));
    watch.Rest();
    time.Pass(milliseconds(400));
  }
  CHECK(outcome.written().empty());
}

TEST_CASE("watch: a limit that renews is one of standing still") {
  const Program program = Lower(small_training::SmallModel(), small_training::Setup(0, 1, 1));
  FakeTime time;
  Outcome outcome;
  WatchOptions options = outcome.Options();
  time.Drive(options);
  Watch watch(options);
  Engine engine(program, WatchedBy(watch));
  engine.Init();
  watch.Expect("many steps", Watch::Seconds(0.3), /*renews=*/true);
  for (int step = 0; step < 5; ++step) {
    engine.Step(small_training::CountingBatch{1});
    time.Pass(milliseconds(200));
  }
  CHECK(outcome.written().empty());
  time.Pass(milliseconds(300));  // nobody is in the engine now
  time.Pass(milliseconds(300));  // the grace
  outcome.ended.Await();
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
  const auto failure = [](bool holds_up) {
    FakeTime time;
    OneOfTwo group;
    Outcome outcome;
    MadeUp ranks;
    ranks.standings = {{1, "waits for its GPU", holds_up}};
    WatchOptions options = outcome.Options(&group);
    time.Drive(options);
    {
      Watch watch(options);
      watch.Observe(&ranks);
      watch.Expect("step 7", Watch::Seconds(0.1));
      time.Pass(milliseconds(80));
      CHECK(outcome.written().empty());
      time.Pass(milliseconds(40));
      CHECK(Has(outcome.written(), "rank 1 waits for its GPU"));
      CHECK(group.failed.raised() == holds_up);  // the others have its patience to speak
      time.Pass(holds_up ? milliseconds(0) : options.patience);
      CHECK(group.failed.raised());
      CHECK_FALSE(outcome.ended.raised());
      time.Pass(options.grace);
      CHECK(outcome.ended.raised());
    }
    CHECK(ranks.interrupted == group.failed_with);
    return group.failed_with;
  };
  CHECK(Has(failure(false), "step 7 has taken 0.1 s; rank 1 waits for its GPU, for 0."));
  CHECK(Has(failure(true), "rank 1 holds it up: it waits for its GPU"));
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
    group.failed.Await();
    outcome.ended.Await();
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
  watch.Expect("step 3", kNoLimit);
  watch.Observe(&ranks);
  group.failed.Await();
  CHECK(group.failed_with == "step 3: NCCL: remote process exited");
  outcome.ended.Await();
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
