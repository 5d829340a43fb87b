// Launcher of the gradient norm's part.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan {
struct StepState;
}

namespace zeroplan::cuda {

// state->grad_norm_sq (+)= sum of squares of g_n, in double; `partials`: NormBlocks(n) doubles.
void LaunchNormSq(const FloatArray& g_n, int64_t n, StepState* state, bool add, double* partials,
                  cudaStream_t stream);

}  // namespace zeroplan::cuda
