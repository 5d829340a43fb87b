// Learning rate schedules, with the formulas of DeepSpeed's lr_schedules.py. Inline, for the CPU
// and for CUDA code alike.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "core/base/host_device.h"
#include "core/config/zero_config.h"

namespace zeroplan {
namespace lr_schedule {

// 0 at t = 0, 1 at the end of the warm-up (log: one step earlier).
ZEROPLAN_HOST_DEVICE inline double WarmupShare(const ScheduleConfig& schedule, double t,
                                               double warmup) {
  return schedule.log_warmup ? std::log(t + 1) / std::log(warmup) : t / warmup;
}

ZEROPLAN_HOST_DEVICE inline double Between(double low, double high, double share) {
  return low + (high - low) * share;
}

ZEROPLAN_HOST_DEVICE inline double Cosine(const ScheduleConfig& schedule, double t, double warmup,
                                          double total) {
  if (t < warmup) {
    return Between(schedule.warmup_min_ratio, 1, WarmupShare(schedule, t, warmup));
  }
  const double progress = std::min(1.0, (t - warmup + 1) / std::max(1.0, total - warmup));
  const double share = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, Between(schedule.cos_min_ratio, 1, share));
}

// How far up the cycle is after t steps, from 0 to 1. In whole numbers, so that a stair is reached
// exactly where it begins.
ZEROPLAN_HOST_DEVICE inline double CycleShare(const OneCycleConfig& cycle, int64_t t) {
  const bool up = t <= cycle.first_steps;
  const int64_t steps = up ? cycle.first_steps : cycle.second_steps;
  const int64_t stairs = up ? cycle.first_stairs : cycle.second_stairs;
  const int64_t climbed = up ? t : cycle.first_steps + cycle.second_steps - t;
  if (stairs == 0) return static_cast<double>(climbed) / static_cast<double>(steps);
  const int64_t stair = climbed * stairs / steps;
  return static_cast<double>(stair) / static_cast<double>(stairs);
}

ZEROPLAN_HOST_DEVICE inline double OneCycle(const OneCycleConfig& cycle, int64_t t) {
  const int64_t total = cycle.first_steps + cycle.second_steps;
  if (t < total) return Between(cycle.min_lr, cycle.max_lr, CycleShare(cycle, t));
  if (cycle.decay_steps == 0) return cycle.min_lr;
  const double past = static_cast<double>(t - total) / static_cast<double>(cycle.decay_steps);
  return cycle.min_lr / (1 + cycle.decay_rate * past);
}

ZEROPLAN_HOST_DEVICE inline double RangeTest(const RangeTestConfig& test, int64_t t) {
  const int64_t whole = t / test.step_size;
  const double interval = test.staircase
                              ? static_cast<double>(whole)
                              : static_cast<double>(t) / static_cast<double>(test.step_size);
  return test.min_lr * (1 + test.step_rate * interval);
}

// n steps of N taken, w of them the warm-up's; as a share of lr.
ZEROPLAN_HOST_DEVICE inline double OfRun(const RunScheduleConfig& run, double n, double total) {
  const auto warmup = static_cast<double>(run.warmup_steps);
  if (n < warmup) return n / warmup;
  if (run.shape == DecayShape::kConstant) return 1;
  const double progress = std::min(1.0, (n - warmup) / std::max(1.0, total - warmup));
  const double share = run.shape == DecayShape::kLinear
                           ? 1 - progress
                           : (1 + std::cos(std::numbers::pi * progress)) / 2;
  return Between(run.min_ratio, 1, share);
}

}  // namespace lr_schedule

// The learning rate of the optimizer step that comes after `steps_taken` (n) others; n = 0 first.
// DeepSpeed's engine moves a schedule after each optimizer step, and its warm-ups begin to count
// with the first move: t = max(0, n - 1), so that the first two steps have the same rate.
//   constant:    lr
//   WarmupLR:    min + (max - min) * g(t), g = log(t + 1) / log(warmup_steps) or t / warmup_steps;
//                max from t = warmup_steps on
//   WarmupDecay: the same, then g falls linearly to 0 at t = total_steps
//   Cosine:      lr * r(t), r from warmup_min_ratio to 1 like g, then along half a cosine to
//                cos_min_ratio at t = total_steps - 1, where it stays; the very first step has rate
//                0
//   OneCycle:    min_lr + (max_lr - min_lr) * c(n), c from 0 to 1 over first_steps, back over
//                second_steps, straight or in stairs; then min_lr / (1 + decay_rate * past /
//                decay_steps)
//   of the run:  lr * n / w over the warm-up's w steps, so that the first has rate 0; then lr, or
//                lr * (r + (1 - r) * c), r = min_ratio, c falling from 1 to 0 at n = N =
//                total_steps, along a line or half a cosine
//   LRRangeTest: min_lr * (1 + step_rate * n / step_size), the quotient rounded down if staircase
// Like DeepSpeed, a warm-up counts as at least 2 steps. tests/deepspeed compares all of them with
// DeepSpeed's own classes.
ZEROPLAN_HOST_DEVICE inline double LearningRate(const OptimizerConfig& optimizer,
                                                int64_t steps_taken) {
  using namespace lr_schedule;
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
    case ScheduleKind::kOfRun:
      return optimizer.lr * OfRun(schedule.of_run, static_cast<double>(steps_taken), total);
  }
  return optimizer.lr;
}

}  // namespace zeroplan
