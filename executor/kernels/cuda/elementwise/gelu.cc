#include "executor/kernels/cuda/elementwise/gelu.h"

#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"

namespace zeroplan::cuda {

void GeluForward(const KernelCall& call) {
  LaunchGeluForward(Floats(call, 0), {}, {}, Floats(call, 1), 1, call.dims[0], LaunchStream(call));
  CheckLaunched(call);
}

void GeluBackward(const KernelCall& call) {
  const FloatArray x_n = Floats(call, 0), d_n = Floats(call, 1);
  LaunchGeluBackward(d_n, x_n, d_n, call.dims[0], LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
