// Small kernels around matrix products: values to time them on, and what a product starts from
// where the library cannot add the bias.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// Uniform numbers in [-1/2, 1/2): how fast a GPU multiplies depends on the bits that toggle, and
// zeros or NaNs would flatter it.
void FillUniform(void* data, Dtype dtype, int64_t n, uint32_t seed, cudaStream_t stream);

// y_MN = bias_N + residual_MN, either of them absent (null) as 0; float dtypes of any kind.
void StartFromBias(const FloatArray& bias_N, const FloatArray& residual_MN, const FloatArray& y_MN,
                   int64_t M, int64_t N, cudaStream_t stream);

}  // namespace zeroplan::cuda
