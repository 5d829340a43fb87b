// Launchers of layer norm and RMS norm. Legend: M rows, C channels. Any float dtypes; fastest if C
// is a multiple of 8 and all activations and weights share a dtype, up to C = 16384 forward and,
// backward, 12288 (layer norm) or 16384 (RMS norm).
#pragma once

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// kLayer: y = (x - mean) * rstd * w + b, statistics [M][2]: mean, rstd = 1/std.
// kRms: y = x * rstd * w, statistics [M]: rstd = 1/sqrt(mean(x^2) + eps).
enum class RowNorm { kLayer, kRms };

struct RowNormForward {
  RowNorm norm;
  FloatArray x_MC, w_C, b_C, y_MC;  // b: layer norm only
  float* stats;
  int64_t M, C;
  float eps;
  float* amax = nullptr;  // raised to the largest magnitude in y
};
void LaunchRowNormForward(const RowNormForward& call, cudaStream_t stream);

struct RowNormBackward {
  RowNorm norm;
  FloatArray dy_MC, x_MC, w_C;
  const float* stats;
  FloatArray dx_MC, dw_C, db_C;  // db: layer norm only
  bool add_to_dx, add_to_weights;
  float* partials;  // NormBackwardBlocks(M) * C floats, twice that for layer norm
  int64_t M, C;
  float* amax = nullptr;  // raised to the largest magnitude in dx
};
void LaunchRowNormBackward(const RowNormBackward& call, cudaStream_t stream);

}  // namespace zeroplan::cuda
