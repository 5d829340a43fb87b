// Launchers of GELU (tanh form) and its gradient: on activations, and on the fp32 sums of a matrix
// product where the library has no such epilogue, or a slower one. Any float dtypes; fastest where
// all are aligned to 16 bytes and share a dtype, or do so but for fp32 sums.
//
// Legend: R rows, N columns; dense, row-major.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// y = gelu(x + bias), pre = x + bias, from x before it is rounded to pre's dtype. bias and pre may
// be absent; y may be x.
void LaunchGeluForward(const FloatArray& x_RN, const FloatArray& bias_N, const FloatArray& pre_RN,
                       const FloatArray& y_RN, int64_t R, int64_t N, cudaStream_t stream);
// dx = dy * gelu'(pre). dx may be dy.
void LaunchGeluBackward(const FloatArray& dy_n, const FloatArray& pre_n, const FloatArray& dx_n,
                        int64_t n, cudaStream_t stream);

}  // namespace zeroplan::cuda
