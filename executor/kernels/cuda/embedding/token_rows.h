// Launchers for rows of single tokens, which replace those of the embedding and the head
// (core/program/kernel_rows.inc: EmbedRows, SwapColumns). Legend: M positions, T sequence, C
// hidden, n rows, R rows of logits, Vp padded vocabulary.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// `starts_M` null: documents start with their row. `wpe_TC` without data: there is none.
void LaunchEmbedRows(const int32_t* places_M, const int32_t* starts_M, const FloatArray& rows_nC,
                     const FloatArray& wpe_TC, const FloatArray& x_MC, int64_t M, int64_t T,
                     int64_t C, int64_t n, cudaStream_t stream);
void LaunchSwapColumns(const int32_t* columns_n, const FloatArray& narrow_Rn,
                       const FloatArray& wide_RVp, int64_t R, int64_t n, int64_t Vp,
                       cudaStream_t stream);

}  // namespace zeroplan::cuda
