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

// What the loss's gradient is multiplied with: the mean over all tokens of a global batch, scaled.
ZEROPLAN_HOST_DEVICE inline float GradScale(const BatchSpec& batch, float loss_scale) {
  const auto tokens = static_cast<double>(batch.global_batch() * batch.seq_len);
  return static_cast<float>(static_cast<double>(loss_scale) / tokens);
}
inline float GradScale(const TrainSetup& setup, float loss_scale) {
  return GradScale(setup.batch, loss_scale);
}

// The state before the first step.
StepState InitialStepState(const TrainSetup& setup);

// Takes a state whose sums (grad_norm_sq, loss_sum) run over all ranks and micro-steps, and settles
// the step: mean loss, true norm, whether to skip, clipping, learning rate, bias corrections. Then
// loss_scale and grad_scale become those of the next step.
ZEROPLAN_HOST_DEVICE inline void SettleStep(const StepSettings& settings, StepState& state) {
  const OptimizerConfig& optimizer = settings.optimizer;
  state.loss_sum /= static_cast<double>(settings.batch.world_size * settings.batch.grad_accum);
  const double scale = static_cast<double>(state.loss_scale);  // of the gradients at hand
  const double norm = std::sqrt(state.grad_norm_sq) / scale;
  state.grad_norm = static_cast<float>(norm);
  const bool overflow = !std::isfinite(norm);
  state.skip = overflow ? 1 : 0;
  if (overflow) {
    ++state.skipped_steps;
  } else {
    state.lr = static_cast<float>(LearningRate(optimizer, state.step));
    ++state.step;
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
  UpdateLossScale(settings.precision, overflow, state);
  state.grad_scale = GradScale(settings.batch, state.loss_scale);
}
inline void SettleStep(const TrainSetup& setup, StepState& state) {
  SettleStep(StepSettings{setup.optimizer, setup.precision, setup.batch}, state);
}

}  // namespace zeroplan
