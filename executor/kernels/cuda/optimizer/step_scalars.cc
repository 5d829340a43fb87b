#include "executor/kernels/cuda/optimizer/step_scalars.h"

#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/optimizer/step_scalars.h"

namespace zeroplan::cuda {

void StepScalars(const KernelCall& call) {
  const TrainSetup& setup = call.context.program->setup;
  LaunchStepScalars({setup.optimizer, setup.precision, setup.batch}, Arg(call, 0).as<StepState>(),
                    LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
