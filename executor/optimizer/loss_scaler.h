// Loss scaling of fp16 training, by the rules of DeepSpeed's DynamicLossScaler.
#pragma once

#include "core/config/zero_config.h"
#include "core/program/step_state.h"

namespace zeroplan {

// The scale of the first step: 1 unless dtype is fp16; then the configured one, or 2^initial power.
float InitialLossScale(const PrecisionConfig& precision);

// Prepares loss_scale, good_steps and hysteresis_left for the next step. Dynamic scale only:
//   overflow: one of hysteresis is used up, or, where none is left, the scale halves (down to
//             min_loss_scale);
//   good:     after each loss_scale_window good steps in a row the scale doubles and hysteresis is
//             refilled (at every good step if consecutive_hysteresis).
void UpdateLossScale(const PrecisionConfig& precision, bool overflow, StepState& state);

}  // namespace zeroplan
