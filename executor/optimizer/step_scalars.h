// What happens once per optimizer step, between the reduced gradient norm and AdamW. Inline, for
// the CPU and for CUDA code alike: both settle a step by the same lines.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/base/host_device.h"
#include "core/config/zero_config.h"
#include "core/program/step_state.h"
#include "executor/optimizer/loss_scaler.h"
#include "executor/optimizer/schedule.h"

namespace zeroplan {

// What settling a step depends on beside its state; a kernel's parameter.
struct StepSettings {
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  BatchSpec batch;
};
static_assert(std::is_trivially_copyable_v<StepSettings>);

// Added to the norm that clipping divides by, as DeepSpeed and PyTorch do.
inline constexpr double kClipEps = 1e-6;

// Positions of a global batch.
ZEROPLAN_HOST_DEVICE inline int64_t BatchTargets(const BatchSpec& batch) {
  return batch.global_batch() * batch.seq_len;
}

// What the loss's gradient is multiplied with: the mean over all positions of a global batch,
// scaled. Where some do not count, SettleStep makes of it the mean over those that do: their number
// is known once all micro-steps and ranks have been.
ZEROPLAN_HOST_DEVICE inline float GradScale(const BatchSpec& batch, float loss_scale) {
  const auto tokens = static_cast<double>(BatchTargets(batch));
  return static_cast<float>(static_cast<double>(loss_scale) / tokens);
}
inline float GradScale(const TrainSetup& setup, float loss_scale) {
  return GradScale(setup.batch, loss_scale);
}

// The median of the last kSpikeWindow steps taken; 0 before that many were taken.
ZEROPLAN_HOST_DEVICE inline float RunningMedian(const float (&recent)[kSpikeWindow]) {
  float sorted[kSpikeWindow];
  for (int i = 0; i < kSpikeWindow; ++i) {
    int at = i;
    for (; at > 0 && sorted[at - 1] > recent[i]; --at) sorted[at] = sorted[at - 1];
    sorted[at] = recent[i];
  }
  return sorted[0] > 0 ? sorted[kSpikeWindow / 2] : 0;
}

// What is wrong with a step of this mean loss and gradient norm, over the share of its targets that
// counts.
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

// Takes the targets that do not count out of a step's votes (see StepVote). Returns the share of
// the targets of `batch` that counts; 1 where a rank could not take part.
ZEROPLAN_HOST_DEVICE inline double TakeCountedShare(const BatchSpec& batch, StepState& state) {
  if (std::isnan(state.stop_requested)) return 1;
  const double stops = std::floor(state.stop_requested);
  const double uncounted = (state.stop_requested - stops) / kUncountedTarget;
  state.stop_requested = stops;
  const auto all = static_cast<double>(BatchTargets(batch));
  return (all - uncounted) / all;
}

// Takes a state whose sums (grad_norm_sq, loss_sum, votes) run over all ranks and micro-steps, and
// settles the step: mean loss, true norm, whether to skip and why, clipping, learning rate, bias
// corrections. Then loss_scale and grad_scale become those of the next step.
ZEROPLAN_HOST_DEVICE inline void SettleStep(const StepSettings& settings, StepState& state) {
  const OptimizerConfig& optimizer = settings.optimizer;
  state.loss_sum /= static_cast<double>(settings.batch.world_size * settings.batch.grad_accum);
  const double share = TakeCountedShare(settings.batch, state);
  if (share > 0) state.loss_sum /= share;
  // The scale of the gradients at hand, which is that of the mean over all targets.
  const double scale = static_cast<double>(state.loss_scale) * (share > 0 ? share : 1);
  const double norm = std::sqrt(state.grad_norm_sq) / scale;
  state.grad_norm = static_cast<float>(norm);
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
  // A loss or norm that is too large says nothing about the scale.
  const bool overflow = state.skip == kGradientsNotFinite;
  if (overflow || state.skip == kTaken) UpdateLossScale(settings.precision, overflow, state);
  state.grad_scale = GradScale(settings.batch, state.loss_scale);
}
inline void SettleStep(const TrainSetup& setup, StepState& state) {
  SettleStep(StepSettings{setup.optimizer, setup.precision, setup.batch}, state);
}

}  // namespace zeroplan
