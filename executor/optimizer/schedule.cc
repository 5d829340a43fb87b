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

}  // namespace

double LearningRate(const OptimizerConfig& optimizer, int64_t steps_taken) {
  const ScheduleConfig& schedule = optimizer.schedule;
  const auto t = static_cast<double>(steps_taken);
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
      return optimizer.lr * Cosine(schedule, t, warmup, total);
  }
  return optimizer.lr;
}

}  // namespace zeroplan
