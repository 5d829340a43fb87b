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
  kAbandoned = 5,  // a rank could not take part: its stop_requested is no number
};

// A running median is over so many steps.
inline constexpr int kSpikeWindow = 5;

struct StepState {
  // Set before a step by kStepScalars (previous step) or at start.
  double grad_norm_sq = 0;    // this rank's, then all ranks' sum of squares of scaled gradients
  double stop_requested = 0;  // summed over ranks with the norm: > 0 means all leave after this
                              // step; NaN: and it is void
  double loss_sum =
      0;  // mean loss of each micro-step, summed over micro-steps (and ranks, when reduced)
  int64_t step = 0;        // optimizer steps taken; a skipped step does not count
  int64_t good_steps = 0;  // since the loss scale last changed
  float loss_scale = 1;
  float grad_scale =
      1;  // what dlogits are multiplied with: loss_scale / (tokens of all ranks and micro-steps)
  float lr = 0;           // used by the step being taken
  float grad_factor = 1;  // gradient multiplier in AdamW: unscale and clip together
  float grad_norm = 0;    // unscaled global norm, before clipping
  float bias_correction1 = 1, bias_correction2 = 1;  // 1 - beta^t of the step being taken
  int32_t skip = kTaken;  // a SkipReason; all but kTaken: kernels of this step change nothing
  int32_t hysteresis_left = 0;
  int32_t position = 0;  // generate: row whose logits are wanted
  int32_t skipped_steps = 0;
  // A step whose loss or norm is above so many times its running median is skipped; 0: none is.
  float spike_factor = 0;
  // Of the last steps taken, step t at t % kSpikeWindow; 0 where there were none yet.
  float recent_loss[kSpikeWindow] = {}, recent_norm[kSpikeWindow] = {};
};
// The first three doubles travel together in one all-reduce.
inline constexpr uint64_t kReducedScalars = 3;
static_assert(sizeof(StepState) == 128);

}  // namespace zeroplan
