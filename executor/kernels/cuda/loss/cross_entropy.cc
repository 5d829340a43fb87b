#include "executor/kernels/cuda/loss/cross_entropy.h"

#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"

namespace zeroplan::cuda {

void CrossEntropy(const KernelCall& call) {
  const auto* state = call.has(kForwardOnly) ? nullptr : Arg(call, 2).as<const StepState>();
  LaunchCrossEntropy(Floats(call, 0), Arg(call, 1).as<const int32_t>(), state,
                     Arg(call, 3).as<float>(), call.dims[0], call.dims[1], call.dims[2],
                     LaunchStream(call));
  CheckLaunched(call);
}

void LossReduce(const KernelCall& call) {
  LaunchLossReduce(Arg(call, 0).as<const float>(), call.dims[0], Arg(call, 1).as<StepState>(),
                   call.has(kAccumulate), LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
