// Our own kernels beside the library's matrix products.
#pragma once

#include <cstdint>

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// The product of one row with a matrix: what a single token's layers are made of. Bound by reading
// the matrix, once.

// y_N = a_K * w (+ bias_N) (+ residual_N), and where gelu_N is there gelu_N = gelu(that), of the
// fp32 sum. w is [K,N], with `transposed` [N,K]. Any float dtypes; fastest where a and w have one
// and the rows of w are multiples of 8 elements. Each element is summed in an order that depends on
// K and the layout alone.
struct RowProduct {
  FloatArray a_K = {}, w = {}, bias_N = {}, residual_N = {}, y_N = {}, gelu_N = {};
  int64_t K = 0, N = 0;
  bool transposed = false;
};

void LaunchRowProduct(const RowProduct& product, cudaStream_t stream);

// Sums over the rows of a matrix, in a fixed order: bias gradients, and the end of those that
// kernels sum themselves. Legend: M rows, N columns.

// Scratch that lets ColumnSums use the whole GPU. With less, down to none, it is slower; the cut
// into partial sums, and so the last bits of a result, depend on M, N and the scratch alone.
uint64_t ColumnSumsScratchBytes(int64_t M, int64_t N);

// out_N = sums of x_MN, or += with `add`. Sums in fp32.
void ColumnSums(const FloatArray& x_MN, int64_t M, int64_t N, const FloatArray& out_N, bool add,
                void* scratch, uint64_t scratch_bytes, cudaStream_t stream);

// out_N = sums over parts of what partials has of it, or += with `add`. partials: [parts][N]; or,
// where there is a second output, [parts][2][N], out's beside second's.
void AddPartials(const float* partials, int64_t parts, int64_t N, const FloatArray& out_N,
                 const FloatArray& second_N, bool add, cudaStream_t stream);

// Small kernels around matrix products: values to time them on, and what a product starts from
// where the library cannot add the bias.

// Uniform numbers in [-1/2, 1/2): how fast a GPU multiplies depends on the bits that toggle, and
// zeros or NaNs would flatter it. `dtype`: a float's, or of eight bits.
void FillUniform(void* data, Dtype dtype, int64_t n, uint32_t seed, cudaStream_t stream);

// y_MN = bias_N + residual_MN, either of them absent (null) as 0; float dtypes of any kind.
void StartFromBias(const FloatArray& bias_N, const FloatArray& residual_MN, const FloatArray& y_MN,
                   int64_t M, int64_t N, cudaStream_t stream);

}  // namespace zeroplan::cuda
