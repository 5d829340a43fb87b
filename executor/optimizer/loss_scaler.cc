#include "executor/optimizer/loss_scaler.h"

#include <algorithm>
#include <cmath>

namespace zeroplan {

float InitialLossScale(const PrecisionConfig& precision) {
  if (precision.dtype != Dtype::kF16) return 1;
  if (precision.loss_scale > 0) return static_cast<float>(precision.loss_scale);
  return std::ldexp(1.0f, precision.initial_scale_power);
}

void UpdateLossScale(const PrecisionConfig& precision, bool overflow, StepState& state) {
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
