// Sums over the rows of a matrix, in a fixed order: bias gradients, and the end of those that
// kernels sum themselves. Legend: M rows, N columns.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

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

}  // namespace zeroplan::cuda
