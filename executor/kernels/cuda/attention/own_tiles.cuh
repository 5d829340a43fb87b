// Tiles of heads in shared memory and fragments of them in registers, for the own fused kernels.
//
// A tile has rows of kHead 16-bit channels and a gap of kRowGap. So eight neighbouring rows' chunks
// of 16 bytes lie in different banks. Legend of lanes: mma.cuh.
#pragma once

#include "executor/kernels/cuda/async_copy.cuh"
#include "executor/kernels/cuda/attention/attention_tiles.cuh"
#include "executor/kernels/cuda/mma.cuh"

namespace zeroplan::cuda {

inline constexpr int kRowGap = 8;
inline constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float Exp2(float v) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(v));
  return out;
}

// The keys that the queries of sequence b see: from First up to themselves.
struct SeenKeys {
  const int32_t* starts_T;  // null: the sequence is one document
  int T, window;

  __device__ SeenKeys(const OwnAttention& of, int64_t b)
      : starts_T(of.starts_BT == nullptr ? nullptr : of.starts_BT + b * of.dims.T),
        T(static_cast<int>(of.dims.T)),
        window(of.window > 0 && of.window < of.dims.T ? static_cast<int>(of.window)
                                                      : static_cast<int>(of.dims.T)) {}
  // Rises with the query. Queries past the sequence count as its last.
  __device__ int First(int query) const {
    const int at = query < T ? query : T - 1;
    const int start = starts_T == nullptr ? 0 : starts_T[at];
    return max(start, at - window + 1);
  }
};

// Starts copies of `rows` rows of D channels, `stride` apart, into a tile of kRows; the rest of the
// tile becomes 0. REQUIRES: D is a multiple of 8, and rows begin at multiples of 16 bytes.
template <int kRows, int kHead, int kThreads, typename T>
__device__ inline void CopyTile(T* tile, const T* source, int64_t stride, int rows, int D) {
  constexpr int kChunks = kHead / 8, kStride = kHead + kRowGap;
  static_assert(kRows * kChunks % kThreads == 0);
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int r = at / kChunks, c = at % kChunks * 8;
    const bool there = r < rows && c < D;
    CopyAsync16OrZero(tile + r * kStride + c, source + (there ? r * stride + c : 0), there);
  }
}

// Writes `rows` rows of a tile back.
template <int kRows, int kHead, int kThreads, typename T>
__device__ inline void StoreTile(const T* tile, T* target, int64_t stride, int rows, int D) {
  constexpr int kChunks = kHead / 8, kStride = kHead + kRowGap;
  for (int at = threadIdx.x; at < kRows * kChunks; at += kThreads) {
    const int r = at / kChunks, c = at % kChunks * 8;
    if (r < rows && c < D) {
      *reinterpret_cast<Pack<T, 8>*>(target + r * stride + c) =
          *reinterpret_cast<const Pack<T, 8>*>(tile + r * kStride + c);
    }
  }
}

// The offset, in elements from a fragment's first, of the row whose address this lane passes to
// LoadMatrices.
//   Rows: A by its rows, and B whose depth runs along a tile's rows (transposed).
//   Columns: B whose columns are a tile's rows, and A whose depth runs along a tile's rows
//   (transposed).
template <int kStride>
__device__ inline int PlaceOfRows() {
  const int lane = threadIdx.x % 32;
  return lane % 16 * kStride + lane / 16 * 8;
}
template <int kStride>
__device__ inline int PlaceOfColumns() {
  const int lane = threadIdx.x % 32;
  return (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
}

// Two neighbouring elements in 16 bits.
template <typename T>
__device__ inline uint32_t PackTwo(float a, float b) {
  const float v[2] = {a, b};
  const Pack<T, 2> two = Narrow<T>(v);
  return *reinterpret_cast<const uint32_t*>(&two);
}

// Sums of 16 rows by 16 columns become an A fragment: columns are the next product's depth.
template <typename T>
__device__ inline void ToFragment(const float (&left)[4], const float (&right)[4],
                                  uint32_t (&a)[4]) {
  a[0] = PackTwo<T>(left[0], left[1]);
  a[1] = PackTwo<T>(left[2], left[3]);
  a[2] = PackTwo<T>(right[0], right[1]);
  a[3] = PackTwo<T>(right[2], right[3]);
}

template <int kA, int kB>
__device__ inline void ClearSums(float (&sums)[kA][kB][4]) {
#pragma unroll
  for (int i = 0; i < kA; ++i) {
#pragma unroll
    for (int j = 0; j < kB; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[i][j][c] = 0;
    }
  }
}

// sums[i][j] += rows 16 i of a times rows 8 j of b, over kHead channels. `a` and `b` point where
// PlaceOfRows and PlaceOfColumns have this lane read.
template <typename T, int kHead, int kA, int kB>
__device__ inline void AddScores(const T* a, const T* b, float (&sums)[kA][kB][4]) {
  constexpr int kStride = kHead + kRowGap;
#pragma unroll
  for (int d = 0; d < kHead; d += 16) {
    uint32_t rows[kA][4];
#pragma unroll
    for (int i = 0; i < kA; ++i) LoadMatrices<false>(a + 16 * i * kStride + d, rows[i]);
#pragma unroll
    for (int j = 0; j < kB; j += 2) {
      uint32_t columns[4];
      LoadMatrices<false>(b + 8 * j * kStride + d, columns);
#pragma unroll
      for (int i = 0; i < kA; ++i) {
        MultiplyAdd<T>(sums[i][j], rows[i], columns[0], columns[1]);
        MultiplyAdd<T>(sums[i][j + 1], rows[i], columns[2], columns[3]);
      }
    }
  }
}

}  // namespace zeroplan::cuda
