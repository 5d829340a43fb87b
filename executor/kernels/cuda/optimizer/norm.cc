#include "executor/kernels/cuda/optimizer/norm.h"

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"

namespace zeroplan::cuda {

void NormSq(const KernelCall& call) {
  const int64_t n = call.dims[0];
  const uint64_t bytes = static_cast<uint64_t>(NormBlocks(n)) * sizeof(double);
  LaunchNormSq(Floats(call, 0), n, Arg(call, 1).as<StepState>(), call.has(kAccumulate),
               static_cast<double*>(ScratchOf(call, 2, bytes)), LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
