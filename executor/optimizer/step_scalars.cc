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

StepSettings SettingsOf(const TrainSetup& setup, uint8_t flags) {
  using Part = StepSettings::Part;
  return {setup.optimizer, setup.precision, setup.batch, GradReplicas(setup),
          (flags & kBeforeNorm) != 0  ? Part::kBeforeNorm
          : (flags & kAfterNorm) != 0 ? Part::kAfterNorm
                                      : Part::kWhole};
}

namespace cpu {

void StepScalars(const KernelCall& call) {
  SettleStep(SettingsOf(call.context.program->setup, call.flags), *Arg(call, 0).as<StepState>());
}

}  // namespace cpu
}  // namespace zeroplan
