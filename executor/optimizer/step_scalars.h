// The scalar computations of an optimizer step, between the reduced gradient norm and AdamW.
// Inline, for the CPU and for CUDA code alike: both run the same lines.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "core/base/host_device.h"
#include "core/program/kernel.h"
#include "core/program/step_state.h"
#include "core/settings/setup_facts.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

// Learning rate schedules, with the formulas of DeepSpeed's lr_schedules.py. Inline, for the CPU
// and for CUDA code alike.

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

// The height in the cycle after t steps, from 0 to 1. In whole numbers, so that a stair begins
// exactly at its step.
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

// The share of lr after n of `total` steps.
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

// The learning rate of the optimizer step after `steps_taken` (n) others; n = 0 first. DeepSpeed's
// engine advances a schedule after each optimizer step, and its warm-ups count from the first
// advance: t = max(0, n - 1), so that the first two steps have the same rate.
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
  // DeepSpeed's warm-ups count from 0 at the second step; the first has their initial rate.
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

// Loss scaling of fp16 training, by the rules of DeepSpeed's DynamicLossScaler. Inline, for the
// CPU and for CUDA code alike.

// The scale of the first step: 1 unless dtype is fp16; then the configured one, or 2^initial power.
ZEROPLAN_HOST_DEVICE inline float InitialLossScale(const PrecisionConfig& precision) {
  if (precision.dtype != Dtype::kF16) return 1;
  if (precision.loss_scale > 0) return static_cast<float>(precision.loss_scale);
  return std::ldexp(1.0f, precision.initial_scale_power);
}

// Updates loss_scale, good_steps and hysteresis_left for the next step. Dynamic scale only:
//   overflow: decrements hysteresis, or, if it is used up, halves the scale (down to
//             min_loss_scale);
//   good:     after each loss_scale_window good steps in a row the scale doubles and hysteresis is
//             refilled (at every good step if consecutive_hysteresis).
ZEROPLAN_HOST_DEVICE inline void UpdateLossScale(const PrecisionConfig& precision, bool overflow,
                                                 StepState& state) {
  if (precision.dtype != Dtype::kF16 || precision.loss_scale > 0) return;
  if (overflow) {
    state.good_steps = 0;
    if (precision.hysteresis == 1 || state.hysteresis_left == 1) {
      state.loss_scale =
          std::max(state.loss_scale / 2, static_cast<float>(precision.min_loss_scale));
    } else {
      --state.hysteresis_left;
    }
    return;
  }
  if (precision.consecutive_hysteresis) state.hysteresis_left = precision.hysteresis;
  if (++state.good_steps < precision.loss_scale_window) return;
  state.good_steps = 0;
  state.hysteresis_left = precision.hysteresis;
  // Beyond fp32's range a scale would stay infinite.
  if (std::isfinite(state.loss_scale * 2)) state.loss_scale *= 2;
}

// The settings of SettleStep; a kernel's parameter.
struct StepSettings {
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  BatchSpec batch;
  int replicas = 1;  // GradReplicas: how often grad_norm_sq includes a gradient
  // Split if updates run in the backward pass: the scalars needed before them, and the norm, after
  // them.
  enum class Part : uint8_t { kWhole, kBeforeNorm, kAfterNorm };
  Part part = Part::kWhole;
};
// The settings of a launch of kStepScalars with these flags.
StepSettings SettingsOf(const TrainSetup& setup, uint8_t flags);
static_assert(std::is_trivially_copyable_v<StepSettings>);

// Added to the norm that clipping divides by, as DeepSpeed and PyTorch do.
inline constexpr double kClipEps = 1e-6;

// The number of positions in a global batch.
ZEROPLAN_HOST_DEVICE inline int64_t BatchTargets(const BatchSpec& batch) {
  return batch.global_batch() * batch.seq_len;
}

// The factor of the loss's gradient: the mean over all positions of a global batch, scaled. If some
// positions do not count, SettleStep corrects it to the mean over those that do, because their
// number is known only after all micro-steps and ranks.
ZEROPLAN_HOST_DEVICE inline float GradScale(const BatchSpec& batch, float loss_scale) {
  const auto tokens = static_cast<double>(BatchTargets(batch));
  return static_cast<float>(static_cast<double>(loss_scale) / tokens);
}
inline float GradScale(const TrainSetup& setup, float loss_scale) {
  return GradScale(setup.batch, loss_scale);
}

// The median of the last kSpikeWindow steps taken; 0 before that many.
ZEROPLAN_HOST_DEVICE inline float RunningMedian(const float (&recent)[kSpikeWindow]) {
  float sorted[kSpikeWindow];
  for (int i = 0; i < kSpikeWindow; ++i) {
    int at = i;
    for (; at > 0 && sorted[at - 1] > recent[i]; --at) sorted[at] = sorted[at - 1];
    sorted[at] = recent[i];
  }
  return sorted[0] > 0 ? sorted[kSpikeWindow / 2] : 0;
}

// The reason to skip a step with this mean loss and gradient norm, given the share of its targets
// that counts.
ZEROPLAN_HOST_DEVICE inline SkipReason FindSkipReason(const StepState& state, double loss,
                                                      double norm, double counted_share) {
  if (std::isnan(state.stop_requested)) return kAbandoned;
  if (counted_share <= 0) return kNothingCounts;
  if (!std::isfinite(norm)) return kGradientsNotFinite;
  if (!std::isfinite(loss)) return kLossNotFinite;
  const auto spikes = [&](double value, const float(&recent)[kSpikeWindow]) {
    const double limit =
        static_cast<double>(state.spike_factor) * static_cast<double>(RunningMedian(recent));
    return limit > 0 && value > limit;
  };
  if (spikes(loss, state.recent_loss)) return kLossSpike;
  if (spikes(norm, state.recent_norm)) return kGradientSpike;
  return kTaken;
}

// The state before the first step.
StepState InitialStepState(const TrainSetup& setup);

// Removes the targets that do not count from a step's votes (see StepVote). Returns the share of
// the targets of `batch` that counts; 1 if a rank could not take part.
ZEROPLAN_HOST_DEVICE inline double TakeCountedShare(const BatchSpec& batch, StepState& state) {
  if (std::isnan(state.stop_requested)) return 1;
  const double stops = std::floor(state.stop_requested);
  const double uncounted = (state.stop_requested - stops) / kUncountedTarget;
  state.stop_requested = stops;
  const auto all = static_cast<double>(BatchTargets(batch));
  return (all - uncounted) / all;
}

// Settles the norm of a step whose updates have run: only the norm changes, or, if it is not
// finite, the step is marked as one that cannot be undone.
ZEROPLAN_HOST_DEVICE inline void SettleNorm(const StepSettings& settings, StepState& state) {
  const double norm =
      std::sqrt(state.grad_norm_sq / settings.replicas) * static_cast<double>(state.grad_factor);
  state.grad_norm = static_cast<float>(norm);
  if (state.skip != kTaken) return;
  if (std::isfinite(norm)) {
    state.recent_norm[state.step % kSpikeWindow] = state.grad_norm;
  } else {
    state.skip = kGradientsNotFinite;
  }
}

// Settles a step from a state whose sums (grad_norm_sq, loss_sum, votes) are complete over all
// ranks and micro-steps: mean loss, true norm, whether to skip and why, clipping, learning rate,
// bias corrections. Then sets loss_scale and grad_scale of the next step.
ZEROPLAN_HOST_DEVICE inline void SettleStep(const StepSettings& settings, StepState& state) {
  if (settings.part == StepSettings::Part::kAfterNorm) return SettleNorm(settings, state);
  const bool norm_known = settings.part == StepSettings::Part::kWhole;
  const OptimizerConfig& optimizer = settings.optimizer;
  state.loss_sum /= static_cast<double>(settings.batch.world_size * settings.batch.grad_accum);
  const double share = TakeCountedShare(settings.batch, state);
  if (share > 0) state.loss_sum /= share;
  // The scale of the present gradients: that of the mean over all targets.
  const double scale = static_cast<double>(state.loss_scale) * (share > 0 ? share : 1);
  const double norm = norm_known ? std::sqrt(state.grad_norm_sq / settings.replicas) / scale : 0;
  state.grad_norm = static_cast<float>(norm);
  state.grad_factor = static_cast<float>(1 / scale);
  state.skip = FindSkipReason(state, state.loss_sum, norm, share);
  if (state.skip != kTaken) {
    if (state.skip != kAbandoned) ++state.skipped_steps;
  } else {
    state.lr = static_cast<float>(LearningRate(optimizer, state.step));
    ++state.step;
    state.recent_loss[state.step % kSpikeWindow] = static_cast<float>(state.loss_sum);
    state.recent_norm[state.step % kSpikeWindow] = state.grad_norm;
    const double limit = optimizer.gradient_clipping;
    const double clip = limit > 0 ? std::min(1.0, limit / (norm + kClipEps)) : 1.0;
    state.grad_factor = static_cast<float>(clip / scale);
    const auto correction = [&](double beta) {
      if (!optimizer.bias_correction) return 1.0f;
      return static_cast<float>(1 - std::pow(beta, static_cast<double>(state.step)));
    };
    state.bias_correction1 = correction(optimizer.betas[0]);
    state.bias_correction2 = correction(optimizer.betas[1]);
  }
  // A loss or norm that is too large implies nothing about the scale.
  const bool overflow = state.skip == kGradientsNotFinite;
  if (overflow || state.skip == kTaken) UpdateLossScale(settings.precision, overflow, state);
  state.grad_scale = GradScale(settings.batch, state.loss_scale);
}
inline void SettleStep(const TrainSetup& setup, StepState& state) {
  SettleStep(SettingsOf(setup, kNoFlags), state);
}

}  // namespace zeroplan
