// Tiles of heads in shared memory, and the two products of attention over them.
//
// A block is 16 x 16 threads. Of a product's kTile rows thread (tx, ty) has rows ty + 16 i; of
// kTile columns tx + 16 j; of D channels the groups of four at 4 tx + 64 c. Tiles of heads have
// rows of kMaxD + 4 floats, so that 16-byte reads of neighbouring rows meet no bank twice; channels
// from D on are zero.
#pragma once

#include "executor/kernels/cuda/attention/attention_kernels.h"
#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda {

inline constexpr int kSide = 16;
inline constexpr int kAttentionThreads = kSide * kSide;

// The first key that each query of row b sees: where its document starts. Rises with the query.
class VisibleKeys {
 public:
  // `starts_BT` null: a row is one document.
  __device__ VisibleKeys(const int32_t* starts_BT, int64_t b, int64_t T)
      : starts_T_(starts_BT == nullptr ? nullptr : starts_BT + b * T), T_(T) {}
  // Queries beyond the row count as its last.
  __device__ int First(int64_t query) const {
    return starts_T_ == nullptr ? 0 : starts_T_[query < T_ ? query : T_ - 1];
  }

 private:
  const int32_t* starts_T_;
  int64_t T_;
};

template <int kMaxDim, int kTileRows>
struct Tiles {
  static constexpr int kMaxD = kMaxDim, kTile = kTileRows;
  static constexpr int kRows = kTile / kSide;  // of a thread
  static constexpr int kGroups = kMaxD / (4 * kSide);
  static constexpr int kStride = kMaxD + 4;       // of a tile of a head
  static constexpr int kScoreStride = kTile + 4;  // of a tile of scores
  static constexpr int kHeadFloats = kTile * kStride;
  static constexpr int kScoreFloats = kTile * kScoreStride;

  // tile[r][d] = scale * source[first + r * stride + d], zero beyond `rows` and D.
  __device__ static void Load(float* tile, const Runtime& source, int64_t first, int64_t stride,
                              int rows, int D, float scale = 1.0f) {
    for (int i = threadIdx.x; i < kTile * kMaxD; i += kAttentionThreads) {
      const int r = i / kMaxD, d = i % kMaxD;
      tile[r * kStride + d] = r < rows && d < D ? scale * source.Get(first + r * stride + d) : 0.0f;
    }
  }

  // s[i][j] = row ty + 16 i of a times row tx + 16 j of b.
  __device__ static void Scores(const float* a, const float* b, int D, float (&s)[kRows][kRows]) {
    const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) s[i][j] = 0;
    }
    for (int d = 0; d < D; d += 4) {  // zeros up to the next multiple of 4
      float4 x[kRows], y[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        x[i] = *reinterpret_cast<const float4*>(a + (ty + kSide * i) * kStride + d);
        y[i] = *reinterpret_cast<const float4*>(b + (tx + kSide * i) * kStride + d);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
          s[i][j] += x[i].x * y[j].x;
          s[i][j] += x[i].y * y[j].y;
          s[i][j] += x[i].z * y[j].z;
          s[i][j] += x[i].w * y[j].w;
        }
      }
    }
  }

  // Stores to row ty + 16 i, column tx + 16 j.
  __device__ static void StoreScores(float* scores, const float (&s)[kRows][kRows]) {
    const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        scores[(ty + kSide * i) * kScoreStride + tx + kSide * j] = s[i][j];
      }
    }
  }

  // out[i] += row ty + 16 i of scores times b, a tile of a head.
  __device__ static void Accumulate(const float* scores, const float* b,
                                    float4 (&out)[kRows][kGroups]) {
    const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
    for (int s = 0; s < kTile; s += 4) {
      float4 p[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        p[i] = *reinterpret_cast<const float4*>(scores + (ty + kSide * i) * kScoreStride + s);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
          const float4 v =
              *reinterpret_cast<const float4*>(b + (s + e) * kStride + 4 * tx + 4 * kSide * c);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            const float w = e == 0 ? p[i].x : e == 1 ? p[i].y : e == 2 ? p[i].z : p[i].w;
            out[i][c].x += w * v.x;
            out[i][c].y += w * v.y;
            out[i][c].z += w * v.z;
            out[i][c].w += w * v.w;
          }
        }
      }
    }
  }

  __device__ static void Clear(float4 (&out)[kRows][kGroups]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int c = 0; c < kGroups; ++c) out[i][c] = make_float4(0, 0, 0, 0);
    }
  }

  // target[first + row * stride + d] = scale[i] * out, for the rows below `rows`.
  __device__ static void Store(const Runtime& target, int64_t first, int64_t stride, int rows,
                               int D, const float4 (&out)[kRows][kGroups],
                               const float (&scale)[kRows]) {
    const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = ty + kSide * i;
      if (r >= rows) continue;
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        const int d = 4 * tx + 4 * kSide * c;
        const int64_t at = first + r * stride + d;
        if (d < D) target.Set(at, scale[i] * out[i][c].x);
        if (d + 1 < D) target.Set(at + 1, scale[i] * out[i][c].y);
        if (d + 2 < D) target.Set(at + 2, scale[i] * out[i][c].z);
        if (d + 3 < D) target.Set(at + 3, scale[i] * out[i][c].w);
      }
    }
  }
};

// The 16 threads that share a row are half a warp.
__device__ inline float HalfWarpSum(float v) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset >>= 1) {
    v += __shfl_xor_sync(0xffffffffu, v, offset);
  }
  return v;
}
__device__ inline float HalfWarpMax(float v) {
#pragma unroll
  for (int offset = kSide / 2; offset > 0; offset >>= 1) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  }
  return v;
}

// Query head h of sequence b, with its keys and values. Element offsets of its token 0.
struct HeadPlace {
  int64_t T, stride, out_stride;  // rows of qkv and of out
  int D;
  int64_t query, key, value, out, lse;

  __device__ HeadPlace(const AttentionDims& dims, int64_t b, int64_t h)
      : T(dims.T),
        stride(dims.QkvRow()),
        out_stride(dims.OutRow()),
        D(static_cast<int>(dims.D)),
        query(b * T * stride + dims.QueryColumn(h)),
        key(b * T * stride + dims.KeyColumn(h / dims.Sharing())),
        value(b * T * stride + dims.ValueColumn(h / dims.Sharing())),
        out(b * T * out_stride + h * dims.D),
        lse((b * dims.H + h) * T) {}
  __device__ int64_t QueryAt(int64_t t) const { return query + t * stride; }
  __device__ int64_t KeyAt(int64_t t) const { return key + t * stride; }
  __device__ int64_t ValueAt(int64_t t) const { return value + t * stride; }
  __device__ int64_t OutAt(int64_t t) const { return out + t * out_stride; }
  __device__ int RowsFrom(int64_t t, int tile) const {
    return T - t < tile ? static_cast<int>(T - t) : tile;
  }
};

// A grid in one dimension, since the others end at 65535: for each tile of a sequence the heads of
// all sequences, `heads` in each. Tiles come in the order of the blocks, whose number bounds all.
struct TileOfHead {
  unsigned b, h, tile;

  __device__ TileOfHead(const AttentionDims& dims, int64_t heads) {
    const auto each = static_cast<unsigned>(heads), all = static_cast<unsigned>(dims.B) * each;
    tile = blockIdx.x / all;
    b = blockIdx.x % all / each;
    h = blockIdx.x % each;
  }
};
inline unsigned GridOfTiles(const AttentionDims& dims, int64_t heads, int64_t rows) {
  return GridOf(CeilDiv64(dims.T, rows) * dims.B * heads, 1);
}
// The first row of a tile of so many, the last tile first: it takes longest.
__device__ inline int64_t LastFirst(const AttentionDims& dims, int64_t tile, int64_t rows) {
  return ((dims.T + rows - 1) / rows - 1 - tile) * rows;
}

// fn(Tiles<..>{}) of the smallest tiles that hold a head of D channels. Heads of 256 channels take
// tiles of 32 tokens, for what four of them need in shared memory.
template <typename Fn>
cudaError_t WithTiles(int64_t D, Fn&& fn) {
  if (D <= 64) return fn(Tiles<64, 64>{});
  if (D <= 128) return fn(Tiles<128, 64>{});
  return fn(Tiles<256, 32>{});
}

}  // namespace zeroplan::cuda
