// Launchers of kernels that treat each element on its own. Legend: M rows, T sequence, C hidden, V
// vocabulary. Any float dtypes; sums in fp32.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan {
struct StepState;
}

namespace zeroplan::cuda {

// dst = src, or dst += src.
void LaunchConvert(const FloatArray& src_n, const FloatArray& dst_n, int64_t n, bool add,
                   cudaStream_t stream);
// row = x[state->position]; `rows` of x. A position outside of x ends the launch with an error.
void LaunchSelectRow(const FloatArray& x, const StepState* state, const FloatArray& row_C,
                     int64_t rows, int64_t C, cudaStream_t stream);
// x[m] = wte[token of m] + wpe[m % T]. A token outside [0, V) ends the launch with an error.
void LaunchEmbedForward(const int32_t* tokens_M, const FloatArray& wte, const FloatArray& wpe,
                        const FloatArray& x_MC, int64_t M, int64_t T, int64_t C, int64_t V,
                        cudaStream_t stream);

}  // namespace zeroplan::cuda
