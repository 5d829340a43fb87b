// What attention's forward and backward pass share.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size.
#pragma once

#include "executor/kernels/attention_call.h"
#include "executor/kernels/gemm.h"

namespace zeroplan::cpu {

// Rows of queries and of keys that one tile of scores covers. Few queries, since half of the scores
// on the diagonal are thrown away, and one full height of the micro-kernel.
inline constexpr int64_t kQueryTile = kColumnAlign;
inline constexpr int64_t kKeyTile = 256;

// `rows` rows of D elements of an argument, `stride` apart, as fp32: where they lie, or in `tile`.
inline FloatMatrix HeadRows(const KernelArg& arg, int64_t first, int64_t stride, int64_t rows,
                            int64_t D, float* tile) {
  if (arg.dtype == Dtype::kF32) return {arg.as<const float>() + first, stride};
  for (int64_t r = 0; r < rows; ++r) {
    Widen(arg.dtype, ElementAt(arg, first + r * stride), D, tile + r * D);
  }
  return {tile, D};
}

// The same, multiplied by `scale` and always copied.
inline FloatMatrix ScaledHeadRows(const KernelArg& arg, int64_t first, int64_t stride, int64_t rows,
                                  int64_t D, float scale, float* tile) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = tile + r * D;
    const float* source = row;
    if (arg.dtype == Dtype::kF32) {
      source = arg.as<const float>() + first + r * stride;
    } else {
      Widen(arg.dtype, ElementAt(arg, first + r * stride), D, row);
    }
    simd::VectorLoop(D, [&](int64_t i, auto part) {
      simd::Store(row + i, simd::Load(source + i, part) * scale, part);
    });
  }
  return {tile, D};
}

// dst rows = src rows * scale, narrowed.
inline void WriteHeadRows(const KernelArg& arg, int64_t first, int64_t stride, int64_t rows,
                          int64_t D, float* src, float scale = 1.0f) {
  for (int64_t r = 0; r < rows; ++r) {
    float* row = src + r * D;
    if (scale != 1.0f) {
      simd::VectorLoop(D, [&](int64_t i, auto part) {
        simd::Store(row + i, simd::Load(row + i, part) * scale, part);
      });
    }
    Narrow(arg.dtype, row, D, ElementAt(arg, first + r * stride));
  }
}

inline void ZeroFloats(float* data, int64_t n) {
  std::memset(data, 0, static_cast<size_t>(n) * sizeof(float));
}

}  // namespace zeroplan::cpu
