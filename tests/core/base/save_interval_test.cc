// The interval of saves and the time of a run, beside Daly's published numbers and simulated runs.
#include "core/base/save_interval.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/test_seed.h"

namespace zeroplan {
namespace {

constexpr double kMinute = 60, kHour = 3600;
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

TEST_CASE("the interval is that of Daly's figures") {
  // Captions of figures 3 to 5: saves take 5 min; the paper's third is of its approximation.
  CHECK(BestSaveInterval(1 / (24 * kHour), 5 * kMinute) / kMinute ==
        doctest::Approx(117).epsilon(0.01));
  CHECK(BestSaveInterval(1 / (6 * kHour), 5 * kMinute) / kMinute ==
        doctest::Approx(57).epsilon(0.01));
  CHECK(BestSaveInterval(1 / (15 * kMinute), 5 * kMinute) / kMinute ==
        doctest::Approx(9.1).epsilon(0.01));
}

TEST_CASE("the interval solves its equation, and Young's bounds it") {
  for (const double mean : {1.0, 60.0, 1e4, 1e7}) {
    for (double save = 1e-9 * mean; save < 50 * mean; save *= 7) {
      CAPTURE(mean);
      CAPTURE(save);
      const double interval = BestSaveInterval(1 / mean, save), x = interval / mean;
      const double young = std::sqrt(2 * save * mean);
      CHECK(interval > 0);
      CHECK(interval <= young);
      CHECK(interval >= young - save - 1e-6 * young);
      CHECK((1 - x) * std::exp(x) == doctest::Approx(std::exp(-save / mean)));
    }
  }
}

TEST_CASE("whole steps: neither neighbour is better, and limits hold") {
  std::mt19937_64 random(TestSeed());
  CAPTURE(TestSeed());
  const auto draw = [&](double low, double high) {
    return std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(random));
  };
  for (int i = 0; i < 2000; ++i) {
    InterruptedRun run = {.rate = 1 / draw(100, 1e7),
                          .step_seconds = draw(0.01, 100),
                          .save_seconds = draw(0.01, 1000),
                          .restart_seconds = draw(1, 1000)};
    const int64_t steps = BestStepsBetweenSaves(run, kMost);
    REQUIRE(steps >= 1);
    const double best = InterruptedShare(run, steps);
    if (!std::isfinite(best)) continue;
    // Neighbours may tie to the last bits of a double.
    constexpr double kRounding = 1 + 1e-12;
    CHECK(best <= InterruptedShare(run, steps + 1) * kRounding);
    if (steps > 1) CHECK(best <= InterruptedShare(run, steps - 1) * kRounding);
    CHECK(BestStepsBetweenSaves(run, 3) <= 3);
    // A save beside the steps is complete before the next begins.
    run.lag_seconds = draw(0.1, 1e5);
    CHECK(static_cast<double>(BestStepsBetweenSaves(run, kMost)) * run.step_seconds >=
          run.lag_seconds * (1 - 1e-9));
  }
  // Saves that cost nothing are made as often as they can be.
  CHECK(BestStepsBetweenSaves({.rate = 1e-3, .step_seconds = 2}, kMost) == 1);
}

TEST_CASE("a run without interruptions to speak of is its steps and saves") {
  const InterruptedRun run = {
      .rate = 1e-12, .step_seconds = 2, .save_seconds = 10, .restart_seconds = 100};
  CHECK(InterruptedSeconds(run, 1000, 100) == doctest::Approx(2000 + 10 * 10));
  CHECK(InterruptedSeconds(run, 1001, 100) == doctest::Approx(2002 + 11 * 10));
  CHECK(InterruptedSeconds(run, 50, 100) == doctest::Approx(100 + 10));
  CHECK(InterruptedShare(run, 100) == doctest::Approx(210.0 / 200));
}

TEST_CASE("a run that never gets on takes for ever, and that is a number") {
  const InterruptedRun run = {
      .rate = 1, .step_seconds = 1000, .save_seconds = 1000, .restart_seconds = 10};
  CHECK(std::isinf(InterruptedSeconds(run, 10, 1)));
  CHECK(std::isinf(InterruptedShare(run, 1)));
  CHECK(BestStepsBetweenSaves(run, kMost) == 1);
}

// One run, second by second as its parts come: steps, the wait for a save, what of it is written
// beside the steps, and interruptions, at any time.
class SimulatedRun {
 public:
  SimulatedRun(const InterruptedRun& run, int64_t steps, int64_t every, uint64_t seed)
      : run_(run), steps_(steps), every_(every), random_(seed), gap_(run.rate) {
    next_ = gap_(random_);
  }

  double Seconds() {
    while (!Finishes()) {
      // Interrupted at next_. A restart may be, too.
      do {
        now_ = next_;
        next_ += gap_(random_);
      } while (now_ + run_.restart_seconds > next_);
      now_ += run_.restart_seconds;
    }
    return now_;
  }

 private:
  // From the newest complete save to the end of the run, or until it is interrupted.
  bool Finishes() {
    for (int64_t done = saved_; done < steps_;) {
      const int64_t target = std::min(done + every_, steps_);
      const double copied =
          now_ + static_cast<double>(target - done) * run_.step_seconds + run_.save_seconds;
      const double complete = copied + run_.lag_seconds;
      // What was being written is complete if it was in time.
      if (pending_ > saved_ && pending_complete_ <= next_) saved_ = pending_;
      if (copied > next_) return Interrupted();
      pending_ = target;
      pending_complete_ = complete;
      now_ = copied;
      done = target;
    }
    if (pending_complete_ > next_) return Interrupted();
    now_ = pending_complete_;
    return true;
  }
  bool Interrupted() {
    if (pending_ > saved_ && pending_complete_ <= next_) saved_ = pending_;
    pending_ = saved_;
    return false;
  }

  const InterruptedRun run_;
  const int64_t steps_, every_;
  std::mt19937_64 random_;
  std::exponential_distribution<double> gap_;
  double now_ = 0, next_ = 0, pending_complete_ = 0;
  int64_t saved_ = 0, pending_ = 0;
};

double MeanOfRuns(const InterruptedRun& run, int64_t steps, int64_t every, int runs) {
  double sum = 0;
  for (int i = 0; i < runs; ++i) {
    sum += SimulatedRun(run, steps, every, TestSeed() + static_cast<uint64_t>(i)).Seconds();
  }
  return sum / runs;
}

struct Simulated {
  std::string what;
  InterruptedRun run;
  int64_t steps;
};

const std::vector<Simulated>& SimulatedRuns() {
  static const std::vector<Simulated> runs = {
      {"a day between interruptions", {1 / (24 * kHour), 20, 300, 0, 600}, 50'000},
      {"spot machines", {1 / (2 * kHour), 5, 40, 0, 300}, 20'000},
      {"saves beside the steps", {1 / (2 * kHour), 5, 2, 120, 300}, 20'000},
      {"hardly any time between", {1 / (15 * kMinute), 3, 60, 0, 240}, 4'000},
      {"a restart that is longer than that", {1 / (10 * kMinute), 1, 10, 30, 900}, 8'000},
      {"few interruptions a run", {1 / (10 * kHour), 10, 30, 60, 600}, 7'213},
  };
  return runs;
}

TEST_CASE("1,000 simulated runs take the expected time") {
  CAPTURE(TestSeed());
  for (const Simulated& simulated : SimulatedRuns()) {
    CAPTURE(simulated.what);
    const int64_t best = BestStepsBetweenSaves(simulated.run, simulated.steps);
    for (const int64_t every : {best, std::max<int64_t>(1, best / 3), 2 * best}) {
      CAPTURE(every);
      const double mean = MeanOfRuns(simulated.run, simulated.steps, every, 1000);
      const double expected = InterruptedSeconds(simulated.run, simulated.steps, every);
      MESSAGE(simulated.what << ", every " << every << " steps: simulated over expected "
                             << mean / expected);
      CHECK(std::abs(mean / expected - 1) < 0.05);
    }
  }
}

TEST_CASE("no interval of a grid is better than the chosen one by 2 %") {
  CAPTURE(TestSeed());
  for (const Simulated& simulated : SimulatedRuns()) {
    CAPTURE(simulated.what);
    const InterruptedRun& run = simulated.run;
    const int64_t chosen = BestStepsBetweenSaves(run, simulated.steps);
    const double expected = InterruptedSeconds(run, simulated.steps, chosen);
    const double mean = MeanOfRuns(run, simulated.steps, chosen, 1000);
    for (double every = 1; every < static_cast<double>(simulated.steps); every *= 1.3) {
      const auto other = static_cast<int64_t>(every);
      // A save beside the steps may not begin before the one before is complete.
      if (static_cast<double>(other) * run.step_seconds < run.lag_seconds) continue;
      CAPTURE(other);
      const double of_other = InterruptedSeconds(run, simulated.steps, other);
      CHECK(expected <= 1.02 * of_other);
      // The same runs, interrupted at the same times.
      if (of_other > 3 * expected) continue;
      CHECK(mean <= 1.02 * MeanOfRuns(run, simulated.steps, other, 1000));
    }
  }
}

}  // namespace
}  // namespace zeroplan
