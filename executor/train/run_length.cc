#include "executor/train/run_length.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// Up to the next whole number; a product that misses one by its rounding counts as that one.
double RoundUp(double value) { return std::ceil(value * (1 - 1e-12)); }

}  // namespace

int64_t StepsOfEpochs(const EpochCount& count) {
  const double samples = RoundUp(count.epochs * static_cast<double>(count.train_samples));
  const double left = samples - static_cast<double>(count.consumed);
  const double steps = static_cast<double>(count.done) +
                       std::max(0.0, std::ceil(left / static_cast<double>(count.global_batch)));
  constexpr double kMax = std::numeric_limits<int32_t>::max();
  if (steps > kMax) {
    ThrowUsage(
        "--epochs {}: of {} samples, in batches of {}, they are {:.0f} steps; at most {:.0f} "
        "are allowed",
        count.epochs, count.train_samples, count.global_batch, steps, kMax);
  }
  return static_cast<int64_t>(steps);
}

ScheduleConfig ScheduleOfRun(ScheduleConfig schedule, int64_t steps) {
  if (schedule.total_steps == 0) schedule.total_steps = steps;
  RunScheduleConfig& of_run = schedule.of_run;
  if (of_run.warmup_share > 0) {
    of_run.warmup_steps = static_cast<int64_t>(
        RoundUp(of_run.warmup_share * static_cast<double>(schedule.total_steps)));
  }
  return schedule;
}

}  // namespace zeroplan
