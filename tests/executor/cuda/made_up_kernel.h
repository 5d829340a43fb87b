// Launcher of tests/made_up_kernel.h's kernel.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// y = x where x > 0, else slope * x. Any float dtypes.
void LaunchLeakyRelu(const FloatArray& x_n, const FloatArray& y_n, int64_t n, float slope,
                     cudaStream_t stream);

}  // namespace zeroplan::cuda
