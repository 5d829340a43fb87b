#include "executor/kernels/cuda/optimizer/optimizer.h"
#include "executor/optimizer/step_scalars.h"

namespace zeroplan::cuda {
namespace {

__global__ void StepScalarsKernel(StepSettings settings, StepState* state) {
  SettleStep(settings, *state);
}

}  // namespace

void LaunchStepScalars(const StepSettings& settings, StepState* state, cudaStream_t stream) {
  StepScalarsKernel<<<1, 1, 0, stream>>>(settings, state);
}

}  // namespace zeroplan::cuda
