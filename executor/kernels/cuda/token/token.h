// One more token after those whose keys and values are cached (core/program/kernel_rows.inc). A
// token's time is that of reading the weights, and for long texts the cache.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/program/step_state.h"
#include "executor/kernels/cuda/float_array.h"
#include "executor/kernels/rotary_frequency.h"

namespace zeroplan::cuda {

struct CacheShape {
  int64_t T, H, G, D;
};

// `wpe` has `positions` rows; without data: none.
void LaunchEmbedToken(const int32_t* token, const FloatArray& wte, const FloatArray& wpe,
                      int64_t positions, const StepState* state, const FloatArray& x_1C, int64_t C,
                      int64_t V, cudaStream_t stream);
void LaunchRotaryRow(const RotaryShape& shape, float attention_factor, const StepState* state,
                     float* table_1D, cudaStream_t stream);
void LaunchKeepKeysValues(const CacheShape& shape, const FloatArray& qkv_TN,
                          const FloatArray& cache_T2GD, cudaStream_t stream);
// `partials`: H * AttendParts(T, G) * (D + 2) floats. Fastest if all arrays share a dtype and D is
// a multiple of 8 of at most 256.
void LaunchAttendToken(const CacheShape& shape, const FloatArray& qkv_1N, const StepState* state,
                       const FloatArray& cache_T2GD, const FloatArray& out_1HD, float* partials,
                       cudaStream_t stream);

}  // namespace zeroplan::cuda
