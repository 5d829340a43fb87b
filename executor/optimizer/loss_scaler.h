// Loss scaling of fp16 training, by the rules of DeepSpeed's DynamicLossScaler. Inline, for the
// CPU and for CUDA code alike.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/base/host_device.h"
#include "core/config/zero_config.h"
#include "core/program/step_state.h"

namespace zeroplan {

// The scale of the first step: 1 unless dtype is fp16; then the configured one, or 2^initial power.
ZEROPLAN_HOST_DEVICE inline float InitialLossScale(const PrecisionConfig& precision) {
  if (precision.dtype != Dtype::kF16) return 1;
  if (precision.loss_scale > 0) return static_cast<float>(precision.loss_scale);
  return std::ldexp(1.0f, precision.initial_scale_power);
}

// Prepares loss_scale, good_steps and hysteresis_left for the next step. Dynamic scale only:
//   overflow: one of hysteresis is used up, or, where none is left, the scale halves (down to
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
  // Past fp32's range a scale would be infinite for good.
  if (std::isfinite(state.loss_scale * 2)) state.loss_scale *= 2;
}

}  // namespace zeroplan
