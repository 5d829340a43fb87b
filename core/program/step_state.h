// The small block of scalars that changes from step to step. It lives in the device arena (and,
// where host kernels run, as a copy in the pinned arena), so that launches never change.
#pragma once

#include <cstdint>

namespace zeroplan {

// Why a step changed nothing. Saved in checkpoints.
enum SkipReason : int32_t {
  kTaken = 0,
  kGradientsNotFinite = 1,
  kLossNotFinite = 2,  // with gradients that are
  kLossSpike = 3,
  kGradientSpike = 4,
  kAbandoned = 5,      // a rank could not take part: its stop_requested is no number
  kNothingCounts = 6,  // no target of the global batch counts in the loss
};

// A running median is over this many steps.
inline constexpr int kSpikeWindow = 5;

// StepState::stop_requested on its way to kStepScalars: what a rank has to tell all others, in one
// double that is summed over ranks. Whole numbers are ranks that ask to stop; below them, in units
// of 2^-36, are the targets of the step that do not count (those below 0). Sums are exact up to
// 2^36 targets and 2^17 ranks. NaN: the rank could not take part.
inline constexpr double kUncountedTarget = 1.0 / (1ull << 36);
constexpr double StepVote(bool stop, int64_t uncounted_targets) {
  return (stop ? 1 : 0) + static_cast<double>(uncounted_targets) * kUncountedTarget;
}

struct StepState {
  // Set before a step by kStepScalars (previous step) or at start.
  double grad_norm_sq = 0;    // this rank's, then all ranks' sum of squares of scaled gradients
  double stop_requested = 0;  // a StepVote, summed over ranks with the norm. After the step what it
                              // says of stops: > 0 means all leave after this step; NaN: and it
                              // is void
  double loss_sum =
      0;  // of each micro-step the losses over its B*T targets, 0 for those that do not count,
          // divided by B*T; summed over micro-steps (and ranks, when reduced). After the step: the
          // mean over all targets of the global batch that count
  int64_t step = 0;        // optimizer steps taken; a skipped step does not count
  int64_t good_steps = 0;  // since the loss scale last changed
  float loss_scale = 1;
  float grad_scale = 1;  // what dlogits are multiplied with: loss_scale / (targets of all ranks and
                         // micro-steps, whether they count or not)
  float lr = 0;          // used by the step being taken
  float grad_factor = 1;  // gradient multiplier in AdamW: unscale and clip together
  float grad_norm = 0;    // unscaled global norm, before clipping
  float bias_correction1 = 1, bias_correction2 = 1;  // 1 - beta^t of the step being taken
  int32_t skip = kTaken;  // a SkipReason; all but kTaken: kernels of this step change nothing
  int32_t hysteresis_left = 0;
  int32_t position = 0;  // generate: row whose logits are wanted
  int32_t skipped_steps = 0;
  // A step whose loss or norm is above this many times its running median is skipped; 0: none is.
  float spike_factor = 0;
  // Losses and norms of the last steps taken, step t at t % kSpikeWindow; 0 where there were none.
  float recent_loss[kSpikeWindow] = {}, recent_norm[kSpikeWindow] = {};
};
// The first three doubles travel together in one all-reduce.
inline constexpr uint64_t kReducedScalars = 3;
static_assert(sizeof(StepState) == 128);

}  // namespace zeroplan
