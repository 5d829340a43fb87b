// Steps of epochs, and what schedules make of a run's length; by hand.
#include "executor/train/run_open.h"

#include <doctest/doctest.h>

#include "tests/error_of.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

TEST_CASE("epochs: steps rounded up to whole batches") {
  CHECK(StepsOfEpochs({.epochs = 1, .train_samples = 10, .global_batch = 5}) == 2);
  CHECK(StepsOfEpochs({.epochs = 1, .train_samples = 11, .global_batch = 5}) == 3);
  CHECK(StepsOfEpochs({.epochs = 3, .train_samples = 11, .global_batch = 5}) == 7);  // 33 samples
  CHECK(StepsOfEpochs({.epochs = 0.5, .train_samples = 11, .global_batch = 2}) == 3);
  // 1.1 * 10 is a little above 11 in doubles.
  CHECK(StepsOfEpochs({.epochs = 1.1, .train_samples = 10, .global_batch = 11}) == 1);
}

TEST_CASE("epochs: a resume with another batch trains on as many samples") {
  // 12 of 20 samples in 3 steps of 4; 8 more in steps of 3.
  EpochCount count = {
      .epochs = 2, .train_samples = 10, .global_batch = 3, .done = 3, .consumed = 12};
  CHECK(StepsOfEpochs(count) == 6);
  count.consumed = 24;  // past the end
  CHECK(StepsOfEpochs(count) == 3);
}

TEST_CASE("epochs: too many steps are an error with the numbers") {
  const std::string message = ErrorOf(ExitCode::kUsage, [] {
    StepsOfEpochs({.epochs = 1000, .train_samples = 3'000'000'000, .global_batch = 1});
  });
  CHECK(Has(message, "⟦epochs⟧ 1000: of 3000000000 samples"));
}

TEST_CASE("schedules: a length of their own stays, a warm-up's share is rounded up") {
  ScheduleConfig schedule;
  schedule.kind = ScheduleKind::kOfRun;
  schedule.of_run.warmup_share = 0.03;
  CHECK(ScheduleOfRun(schedule, 50).of_run.warmup_steps == 2);   // 1.5
  CHECK(ScheduleOfRun(schedule, 100).of_run.warmup_steps == 3);  // 0.03 * 100 is above 3 in doubles
  CHECK(ScheduleOfRun(schedule, 50).total_steps == 50);
  schedule.total_steps = 70;
  CHECK(ScheduleOfRun(schedule, 50).total_steps == 70);
}

}  // namespace
}  // namespace zeroplan
