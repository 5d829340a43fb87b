// GELU (tanh form) and its gradient on the fp32 sums of a matrix product, where the library has no
// such epilogue, or a slower one.
//
// Legend: R rows, N columns; dense, row-major. `dtype` is a float one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/dtype.h"

namespace zeroplan::cuda {

// pre_RN = sums + bias_N, y_RN = gelu(sums + bias_N) before rounding. In fp32 y may be sums.
void LaunchGeluOfSums(const float* sums_RN, const void* bias_N, void* pre_RN, void* y_RN,
                      Dtype dtype, int64_t R, int64_t N, cudaStream_t stream);
// dx_RN = sums * gelu'(pre_RN). In fp32 dx may be sums.
void LaunchGeluGradOfSums(const float* sums_RN, const void* pre_RN, void* dx_RN, Dtype dtype,
                          int64_t R, int64_t N, cudaStream_t stream);

}  // namespace zeroplan::cuda
