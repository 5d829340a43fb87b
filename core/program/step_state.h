// The small block of scalars that change from step to step. It is in the device arena (and, where
// host kernels run, as a copy in the pinned arena), so that launches never change.
#pragma once

#include <cstdint>

namespace zeroplan {

// The reason for which a step was skipped. Saved in checkpoints.
enum SkipReason : int32_t {
  kTaken = 0,
  kGradientsNotFinite = 1,
  kLossNotFinite = 2,  // while the gradients are finite
  kLossSpike = 3,
  kGradientSpike = 4,
  kAbandoned = 5,      // a rank could not take part: its stop_requested is NaN
  kNothingCounts = 6,  // no target of the global batch counts in the loss
};

// The number of steps of a running median.
inline constexpr int kSpikeWindow = 5;

// StepState::stop_requested on its way to kStepScalars: one double per rank, summed over ranks. The
// whole part counts the ranks that request a stop. The fraction, in units of 2^-36, counts the
// targets of the step that do not count in the loss (those below 0). Sums are exact up to 2^36
// targets and 2^17 ranks. NaN: the rank could not take part.
inline constexpr double kUncountedTarget = 1.0 / (1ull << 36);
constexpr double StepVote(bool stop, int64_t uncounted_targets) {
  return (stop ? 1 : 0) + static_cast<double>(uncounted_targets) * kUncountedTarget;
}

struct StepState {
  // Set before a step by kStepScalars (previous step) or at start.
  double grad_norm_sq = 0;    // this rank's, then all ranks' sum of squares of scaled gradients
  double stop_requested = 0;  // a StepVote, summed over ranks with the norm. After the step only
                              // its count of stops: > 0 means that all ranks leave after this step;
                              // NaN means that they leave and the step is void
  double loss_sum =
      0;  // for each micro-step the sum of the losses of its B*T targets (0 for targets that do not
          // count), divided by B*T; summed over micro-steps (and ranks, when reduced). After the
          // step: the mean over all targets of the global batch that count
  int64_t step = 0;        // optimizer steps taken; a skipped step does not count
  int64_t good_steps = 0;  // good steps since the loss scale last changed
  float loss_scale = 1;
  float grad_scale = 1;   // factor of dlogits: loss_scale / (targets of all ranks and micro-steps,
                          // whether they count or not)
  float lr = 0;           // the rate of the step being taken
  float grad_factor = 1;  // gradient multiplier in AdamW: unscale and clip together
  float grad_norm = 0;    // unscaled global norm, before clipping
  float bias_correction1 = 1, bias_correction2 = 1;  // 1 - beta^t of the step being taken
  int32_t skip = kTaken;  // a SkipReason; unless kTaken, kernels of this step change nothing
  int32_t hysteresis_left = 0;
  int32_t position = 0;  // generate: the row whose logits are returned
  int32_t skipped_steps = 0;
  // A step whose loss or norm exceeds its running median by this factor is skipped; 0: no step is.
  float spike_factor = 0;
  // Losses and norms of the last steps taken, step t at t % kSpikeWindow; 0 before the first steps.
  float recent_loss[kSpikeWindow] = {}, recent_norm[kSpikeWindow] = {};
};
// One all-reduce sums the first three doubles.
inline constexpr uint64_t kReducedScalars = 3;
static_assert(sizeof(StepState) == 128);

}  // namespace zeroplan
