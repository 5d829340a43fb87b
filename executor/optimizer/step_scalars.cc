#include "executor/optimizer/step_scalars.h"

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan {

StepState InitialStepState(const TrainSetup& setup) {
  StepState state;
  state.loss_scale = InitialLossScale(setup.precision);
  state.grad_scale = GradScale(setup, state.loss_scale);
  state.hysteresis_left = setup.precision.hysteresis;
  return state;
}

namespace cpu {

void StepScalars(const KernelCall& call) {
  SettleStep(call.context.program->setup, *Arg(call, 0).as<StepState>());
}

}  // namespace cpu
}  // namespace zeroplan
