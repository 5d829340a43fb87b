// Sums of a matrix' columns: the gradient of a bias. The order of the additions depends on the shape
// and on the scratch alone, so equal inputs give equal bits.
//
// Legend: M rows, N columns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/dtype.h"

namespace zeroplan::cuda {

// The least scratch that ColumnSums can work with; with more it is faster, up to a few MiB.
constexpr uint64_t ColumnSumsScratch(int64_t columns) {
  return static_cast<uint64_t>(columns) * sizeof(float);
}

// db_N = column sums of dy_MN (row-major, dense), or db_N += them. Float dtypes of any kind; sums
// are fp32. `scratch` is aligned to 16 bytes. REQUIRES: scratch_bytes >= ColumnSumsScratch(N).
void ColumnSums(const void* dy_MN, Dtype dy_dtype, int64_t M, int64_t N, void* db_N,
                Dtype db_dtype, bool accumulate, void* scratch, uint64_t scratch_bytes,
                cudaStream_t stream);

// dst_n += src_n, both of `dtype`.
void AddVector(const void* src_n, void* dst_n, Dtype dtype, int64_t n, cudaStream_t stream);

}  // namespace zeroplan::cuda
