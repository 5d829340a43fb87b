// What happens once per optimizer step, between the reduced gradient norm and AdamW.
#pragma once

#include "core/config/zero_config.h"
#include "core/program/step_state.h"

namespace zeroplan {

// What the loss's gradient is multiplied with: the mean over all tokens of a global batch, scaled.
float GradScale(const TrainSetup& setup, float loss_scale);

// The state before the first step.
StepState InitialStepState(const TrainSetup& setup);

// Takes a state whose sums (grad_norm_sq, loss_sum) run over all ranks and micro-steps, and settles
// the step: mean loss, true norm, whether to skip, clipping, learning rate, bias corrections. Then
// loss_scale and grad_scale become those of the next step.
void SettleStep(const TrainSetup& setup, StepState& state);

}  // namespace zeroplan
