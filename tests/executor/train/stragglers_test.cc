// The rank that the others wait for, in metrics' figures and in the warning.
#include "executor/train/stragglers.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <thread>

#include "executor/process/process_group.h"
#include "tests/executor/engine/small_training.h"
#include "tests/patience.h"

namespace zeroplan {
namespace {

using Clock = std::chrono::steady_clock;

TEST_CASE("stragglers: the slowest rank over the median of the others") {
  CHECK_FALSE(FindSlowest({}).has_value());
  CHECK_FALSE(FindSlowest({1}).has_value());
  CHECK_FALSE(FindSlowest({1, 0}).has_value());
  const auto of_two = FindSlowest({1, 4});
  REQUIRE(of_two.has_value());
  CHECK(of_two->rank == 1);
  CHECK(of_two->share == 4);
  const auto of_five = FindSlowest({3, 9, 1, 2, 2});
  REQUIRE(of_five.has_value());
  CHECK(of_five->rank == 1);
  CHECK(of_five->share == 4.5);  // over the median of 3, 1, 2, 2
}

TEST_CASE("stragglers: told every 16 steps, without the first one, and only where all is known") {
  SingleProcess alone;
  Stragglers stragglers;
  for (int step = 1; step <= 48; ++step) {
    CAPTURE(step);
    // The first step and one unknown do not count.
    const double slow = step == 1 ? 1000 : 3;
    std::vector<std::optional<double>> own = {1.0, slow, 1.0};
    if (step == 20) own[2].reset();
    const auto found = stragglers.Note(own, alone);
    REQUIRE(found.has_value() == (step == 16 || step == 48));
    if (!found) continue;
    CHECK(found->rank == 1);
    CHECK(found->seconds == 3);
    CHECK(found->share == 3);
  }
}

TEST_CASE("stragglers: a warning past the factor, not again and again") {
  Stragglers stragglers;
  const Clock::time_point now;
  CHECK_FALSE(stragglers.Warning({3, 1.9, 1.9}, now).has_value());
  CHECK_FALSE(stragglers.Warning({3, 0.001, 5}, now).has_value());  // a millisecond
  const auto said = stragglers.Warning({3, 1.2, 2.5}, now);
  REQUIRE(said.has_value());
  CHECK(*said ==
        "rank 3 holds the others up: 1.200 s of its own a step over the last 16 steps, 2.5 times "
        "the median of the other ranks");
  CHECK_FALSE(stragglers.Warning({3, 1.2, 2.5}, now + std::chrono::minutes(9)).has_value());
  CHECK(stragglers.Warning({1, 1.2, 2.5}, now + std::chrono::minutes(9)).has_value());
  CHECK(stragglers.Warning({1, 1.2, 2.5}, now + std::chrono::minutes(20)).has_value());
}

TEST_CASE("stragglers: a slow rank's own seconds are its own, whoever waits for it") {
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    const Program program = Lower(small_training::SmallModel(), small_training::Setup(stage, 3, 2));
    EngineOptions options;
    options.threads_per_rank = 1;
    Engine engine(program, options);
    engine.Init();
    engine.Step(small_training::CountingBatch{3});
    std::vector<double> own;
    // What the others do takes far less than the pause of rank 2.
    const auto is_its_own = [&](std::chrono::milliseconds pause) {
      engine.Step([&](int rank, int64_t m, std::span<int32_t> inputs, std::span<int32_t> targets) {
        if (rank == 2) std::this_thread::sleep_for(pause);
        small_training::CountingBatch{3}(rank, m, inputs, targets);
      });
      own.clear();
      for (const auto& seconds : engine.LastOwnSeconds()) own.push_back(seconds.value());
      REQUIRE(own.size() == 3);
      const auto slow = FindSlowest(own);
      const double seconds = std::chrono::duration<double>(pause).count();
      CHECK(own[2] > 2 * seconds);
      return slow.has_value() && slow->rank == 2 && own[0] < own[2] - 1.5 * seconds &&
             own[1] < own[2] - 1.5 * seconds;
    };
    CHECK_MESSAGE(WithLongerLimits(std::chrono::milliseconds(100), is_its_own),
                  fmt::format("{}", fmt::join(own, " ")));
  }
}

}  // namespace
}  // namespace zeroplan
