// Launchers of layer norm. Legend: M rows, C channels. Any float dtypes; fastest where C is a
// multiple of 8 and all activations and weights share a dtype, up to C = 16384 forward and 12288
// backward.
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

void LaunchLayerNormForward(const FloatArray& x_MC, const FloatArray& w_C, const FloatArray& b_C,
                            const FloatArray& y_MC, float* stats_M2, int64_t M, int64_t C,
                            float eps, cudaStream_t stream);

struct LayerNormGradients {
  FloatArray dx_MC, dw_C, db_C;
  bool add_to_dx = false, add_to_weights = false;
};

// `partials`: NormBackwardBlocks(M) * 2 * C floats.
void LaunchLayerNormBackward(const FloatArray& dy_MC, const FloatArray& x_MC, const FloatArray& w_C,
                             const float* stats_M2, const LayerNormGradients& out, float* partials,
                             int64_t M, int64_t C, cudaStream_t stream);

}  // namespace zeroplan::cuda
