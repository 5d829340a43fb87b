// Our own kernels that complement the library's matmuls.
#pragma once

#include <cstdint>

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// Multiplication of one row with a matrix, for a single token's layers. Bound by reading the
// matrix, once.

// y_N = a_K * w (+ bias_N) (+ residual_N), and if gelu_N is there gelu_N = gelu(that), of the fp32
// sum. w is [K,N], with `transposed` [N,K]. Any float dtypes; fastest if a and w have one and the
// rows of w are multiples of 8 elements. The order of each element's sum depends on K and the
// layout alone.
struct RowProduct {
  FloatArray a_K = {}, w = {}, bias_N = {}, residual_N = {}, y_N = {}, gelu_N = {};
  int64_t K = 0, N = 0;
  bool transposed = false;
};

void LaunchRowProduct(const RowProduct& product, cudaStream_t stream);

// Sums over the rows of a matrix, in a fixed order: bias gradients, and the last step of sums that
// kernels make themselves. Legend: M rows, N columns.

// Scratch with which ColumnSums uses the whole GPU. With less, down to none, it is slower; the
// split into partial sums, and so the last bits of a result, depend on M, N and the scratch alone.
uint64_t ColumnSumsScratchBytes(int64_t M, int64_t N);

// out_N = sums of x_MN, or += with `add`. Sums in fp32.
void ColumnSums(const FloatArray& x_MN, int64_t M, int64_t N, const FloatArray& out_N, bool add,
                void* scratch, uint64_t scratch_bytes, cudaStream_t stream);

// out_N = sums of its partials over parts, or += with `add`. partials: [parts][N]; or, if there is
// a second output, [parts][2][N], out's before second's.
void AddPartials(const float* partials, int64_t parts, int64_t N, const FloatArray& out_N,
                 const FloatArray& second_N, bool add, cudaStream_t stream);

// Small kernels around matmuls: operands to time them on, and the start value of a result if the
// library cannot add the bias.

// Uniform numbers in [-1/2, 1/2): a GPU's speed depends on the bits that toggle, and zeros or NaNs
// would flatter it. `dtype`: a float's, or of 8 bits.
void FillUniform(void* data, Dtype dtype, int64_t n, uint32_t seed, cudaStream_t stream);

// y_MN = bias_N + residual_MN, with absent ones (null) as 0; any float dtypes.
void StartFromBias(const FloatArray& bias_N, const FloatArray& residual_MN, const FloatArray& y_MN,
                   int64_t M, int64_t N, cudaStream_t stream);

}  // namespace zeroplan::cuda
