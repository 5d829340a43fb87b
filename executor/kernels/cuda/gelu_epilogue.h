// GELU (tanh form) and its gradient, as kernels of their own beside a matrix product: where the
// library has no such epilogue, or a slower one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/dtype.h"

namespace zeroplan::cuda {

// y_n = gelu(pre_n). Both have `dtype`, a float one.
void LaunchGeluOfProduct(const void* pre_n, void* y_n, Dtype dtype, int64_t n,
                         cudaStream_t stream);
// d_n = d_n * gelu'(pre_n), in place.
void LaunchGeluGradOfProduct(const void* pre_n, void* d_n, Dtype dtype, int64_t n,
                             cudaStream_t stream);

}  // namespace zeroplan::cuda
