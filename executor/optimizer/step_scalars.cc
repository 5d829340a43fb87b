#include "executor/optimizer/step_scalars.h"

#include <algorithm>
#include <cmath>

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"
#include "executor/optimizer/loss_scaler.h"
#include "executor/optimizer/schedule.h"

namespace zeroplan {
namespace {

// Added to the norm that clipping divides by, as DeepSpeed and PyTorch do.
constexpr double kClipEps = 1e-6;

}  // namespace

float GradScale(const TrainSetup& setup, float loss_scale) {
  const auto tokens = static_cast<double>(setup.batch.global_batch() * setup.batch.seq_len);
  return static_cast<float>(static_cast<double>(loss_scale) / tokens);
}

StepState InitialStepState(const TrainSetup& setup) {
  StepState state;
  state.loss_scale = InitialLossScale(setup.precision);
  state.grad_scale = GradScale(setup, state.loss_scale);
  state.hysteresis_left = setup.precision.hysteresis;
  return state;
}

void SettleStep(const TrainSetup& setup, StepState& state) {
  const OptimizerConfig& optimizer = setup.optimizer;
  state.loss_sum /= static_cast<double>(setup.batch.world_size * setup.batch.grad_accum);
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
  UpdateLossScale(setup.precision, overflow, state);
  state.grad_scale = GradScale(setup, state.loss_scale);
}

namespace cpu {

void StepScalars(const KernelCall& call) {
  SettleStep(call.context.program->setup, *Arg(call, 0).as<StepState>());
}

}  // namespace cpu
}  // namespace zeroplan
