// Sums over the rows of a matrix (bias and layer norm gradients): partial sums over fixed chunks of
// rows, then the chunks in order, so that the result does not depend on the number of threads.
#pragma once

#include "executor/kernels/kernel_util.h"

namespace zeroplan {

// Rows summed by one partial sum at least, and partial sums at most.
inline constexpr int64_t kRowsPerPartial = 16;
inline constexpr int64_t kMostPartials = 64;

// The cut of `rows` whose partial sums (`floats` each) fit into half of one worker's scratch. They
// lie at the front of worker 0's block; what else workers need comes after PartialFloats(cut,
// floats).
FixedCut CutRows(ThreadPool& pool, int64_t rows, int64_t floats);
inline int64_t PartialFloats(const FixedCut& cut, int64_t floats) { return cut.chunks * floats; }

// out_n (+)= sum over chunks of partials[chunk * stride + i].
void AddPartials(ThreadPool& pool, const float* partials, int64_t chunks, int64_t stride, int64_t n,
                 const KernelArg& out, bool accumulate);

// out_N (+)= sum over rows of x_MN.
void ColumnSums(ThreadPool& pool, int64_t M, int64_t N, const KernelArg& x, const KernelArg& out,
                bool accumulate);

}  // namespace zeroplan
