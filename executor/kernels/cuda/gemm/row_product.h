// The product of one row with a matrix: what a single token's layers are made of. Bound by reading
// the matrix, once.
#pragma once

#include <cstdint>

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

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

}  // namespace zeroplan::cuda
