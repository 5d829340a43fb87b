// Launcher of the step's scalars.
#pragma once

#include <cuda_runtime_api.h>

namespace zeroplan {
struct StepState;
struct StepSettings;
}  // namespace zeroplan

namespace zeroplan::cuda {

// SettleStep (executor/optimizer/step_scalars.h) by one thread of the GPU.
void LaunchStepScalars(const StepSettings& settings, StepState* state, cudaStream_t stream);

}  // namespace zeroplan::cuda
