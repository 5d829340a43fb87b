// Functions shared by attention's forward and backward pass.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size.
#pragma once

#include "executor/kernels/attention_dims.h"
#include "executor/kernels/gemm.h"

namespace zeroplan::cpu {

// The keys that the queries of a sequence see: those from the start of their document up to
// themselves.
class VisibleKeys {
 public:
  // The visible keys of sequence b; `starts_BT` may be absent: a sequence is one document.
  VisibleKeys(const KernelArg& starts_BT, int64_t b, int64_t T)
      : starts_T_(Present(starts_BT) ? starts_BT.as<const int32_t>() + b * T : nullptr) {}

  // The first key that query q sees. Rises with q.
  int64_t First(int64_t q) const { return starts_T_ == nullptr ? 0 : starts_T_[q]; }

  // Query q sees the keys [begin, end) of [k0, k0 + keys), counted from k0; begin == end: none.
  struct Range {
    int64_t begin, end;
  };
  Range Within(int64_t q, int64_t k0, int64_t keys) const {
    const int64_t end = std::clamp<int64_t>(q + 1 - k0, 0, keys);
    return {std::clamp<int64_t>(First(q) - k0, 0, end), end};
  }

 private:
  const int32_t* starts_T_;
};

// Rows of queries and of keys in one tile of scores: few queries, because half of the scores on the
// diagonal are discarded, and one full height of the micro-kernel.
inline constexpr int64_t kQueryTile = kColumnAlign;
inline constexpr int64_t kKeyTile = 256;

// `rows` rows of D elements of an argument, `stride` apart, as fp32: in place if they are fp32,
// else in `tile`.
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

// Zeroes the elements of a row of n that a query does not see.
inline void ZeroHidden(float* row_S, const VisibleKeys::Range& seen, int64_t n) {
  ZeroFloats(row_S, seen.begin);
  ZeroFloats(row_S + seen.end, n - seen.end);
}

}  // namespace zeroplan::cpu
