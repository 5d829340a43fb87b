// Launchers of rotary positions. Legend: kernel_rows.inc's. Any float dtypes; fastest if D is a
// multiple of 16 of at most 512 and all activations and weights share a dtype. Tables are F32.
#pragma once

#include "executor/kernels/cuda/float_array.h"
#include "executor/kernels/rotary_frequency.h"

namespace zeroplan::cuda {

// Rows of H query, G key and G value heads of D elements. M < 2^31.
struct QkvRows {
  int64_t M;
  int T, H, G, D;
  // The start of each position's document in its row of T; null: rows are whole texts.
  const int32_t* starts_M = nullptr;

  ZEROPLAN_HOST_DEVICE int heads() const { return H + 2 * G; }
  ZEROPLAN_HOST_DEVICE int rotated() const { return H + G; }
  // The first element of a head.
  ZEROPLAN_HOST_DEVICE int64_t at(int64_t m, int head) const {
    return (m * heads() + head) * static_cast<int64_t>(D);
  }
  ZEROPLAN_HOST_DEVICE int64_t table_at(int64_t m) const {
    const auto t = static_cast<int64_t>(static_cast<uint32_t>(m) % static_cast<uint32_t>(T));
    return (starts_M == nullptr ? t : t - starts_M[m]) * D;
  }
};

void LaunchRotaryTable(const RotaryShape& shape, float attention_factor, float* table_TD, int64_t T,
                       cudaStream_t stream);

// `sign` -1: rotates back.
void LaunchRotary(const QkvRows& rows, const FloatArray& table_TD, const FloatArray& qkv_MN,
                  float sign, cudaStream_t stream);

struct QkNormForwardArrays {
  FloatArray qkv_MN, w_2D, table_TD, out_MN;
  float* rstd;  // [M][H+G]
  float eps;
};
void LaunchQkNormRotaryForward(const QkvRows& rows, const QkNormForwardArrays& arrays,
                               cudaStream_t stream);

struct QkNormBackwardArrays {
  FloatArray dqkv_MN, qkv_MN, w_2D;
  const float* rstd;
  FloatArray table_TD, dw_2D;
  bool add_to_weights;
  float* partials;  // QkNormBackwardBlocks(M) * 2 * D floats
};
void LaunchQkNormRotaryBackward(const QkvRows& rows, const QkNormBackwardArrays& arrays,
                                cudaStream_t stream);

// The same with one norm over all query heads and one over all key heads: w_2D is w_(H+G)D, rstd
// has 2 values a row, and partials NormBackwardBlocks(M) * (H+G) * D floats.
void LaunchWholeNormRotaryForward(const QkvRows& rows, const QkNormForwardArrays& arrays,
                                  cudaStream_t stream);
void LaunchWholeNormRotaryBackward(const QkvRows& rows, const QkNormBackwardArrays& arrays,
                                   cudaStream_t stream);

}  // namespace zeroplan::cuda
