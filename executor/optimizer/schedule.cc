#include "executor/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zeroplan {
namespace {

// 0 at t = 0, 1 at the end of the warm-up (log: one step earlier).
double WarmupShare(const ScheduleConfig& schedule, double t, double warmup) {
  return schedule.log_warmup ? std::log(t + 1) / std::log(warmup) : t / warmup;
}

double Between(double low, double high, double share) { return low + (high - low) * share; }

double Cosine(const ScheduleConfig& schedule, double t, double warmup, double total) {
  if (t < warmup) {
    return Between(schedule.warmup_min_ratio, 1, WarmupShare(schedule, t, warmup));
  }
  const double progress = std::min(1.0, (t - warmup + 1) / std::max(1.0, total - warmup));
  const double share = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, Between(schedule.cos_min_ratio, 1, share));
}

// How far up the cycle is after t steps, from 0 to 1. In whole numbers, so that a stair is reached
// exactly where it begins.
double CycleShare(const OneCycleConfig& cycle, int64_t t) {
  const bool up = t <= cycle.first_steps;
  const int64_t steps = up ? cycle.first_steps : cycle.second_steps;
  const int64_t stairs = up ? cycle.first_stairs : cycle.second_stairs;
  const int64_t climbed = up ? t : cycle.first_steps + cycle.second_steps - t;
  if (stairs == 0) return static_cast<double>(climbed) / static_cast<double>(steps);
  return static_cast<double>(climbed * stairs / steps) / static_cast<double>(stairs);
}

double OneCycle(const OneCycleConfig& cycle, int64_t t) {
  const int64_t total = cycle.first_steps + cycle.second_steps;
  if (t < total) return Between(cycle.min_lr, cycle.max_lr, CycleShare(cycle, t));
  if (cycle.decay_steps == 0) return cycle.min_lr;
  const double past = static_cast<double>(t - total) / static_cast<double>(cycle.decay_steps);
  return cycle.min_lr / (1 + cycle.decay_rate * past);
}

double RangeTest(const RangeTestConfig& test, int64_t t) {
  const double interval = test.staircase
                              ? static_cast<double>(t / test.step_size)
                              : static_cast<double>(t) / static_cast<double>(test.step_size);
  return test.min_lr * (1 + test.step_rate * interval);
}

}  // namespace

double LearningRate(const OptimizerConfig& optimizer, int64_t steps_taken) {
  const ScheduleConfig& schedule = optimizer.schedule;
  // DeepSpeed's warm-ups count from 0 at the second step; the first has the rate they start with.
  const auto t = static_cast<double>(std::max<int64_t>(0, steps_taken - 1));
  const auto warmup = static_cast<double>(std::max<int64_t>(2, schedule.warmup_steps));
  const auto total = static_cast<double>(schedule.total_steps);
  const double min = schedule.warmup_min_lr, max = schedule.warmup_max_lr;
  switch (schedule.kind) {
    case ScheduleKind::kConstant:
      return optimizer.lr;
    case ScheduleKind::kWarmup:
      return Between(min, max, t < warmup ? WarmupShare(schedule, t, warmup) : 1);
    case ScheduleKind::kWarmupDecay: {
      if (t < warmup) return Between(min, max, WarmupShare(schedule, t, warmup));
      return Between(min, max, std::max(0.0, (total - t) / std::max(1.0, total - warmup)));
    }
    case ScheduleKind::kWarmupCosine:
      return steps_taken == 0 ? 0 : optimizer.lr * Cosine(schedule, t, warmup, total);
    case ScheduleKind::kOneCycle:
      return OneCycle(schedule.one_cycle, steps_taken);
    case ScheduleKind::kRangeTest:
      return RangeTest(schedule.range_test, steps_taken);
  }
  return optimizer.lr;
}

}  // namespace zeroplan
