// With p = exp(q k / sqrt(D) - lse), o = p v: dv = p^T do; dp = do v^T; ds = p (dp - sum_D do o);
// dq = ds k / sqrt(D); dk = ds^T q / sqrt(D). Probabilities are made again by both kernels.
#include <cmath>

#include "executor/kernels/cuda/attention/attention_tiles.cuh"

namespace zeroplan::cuda {
namespace {

struct Arrays {
  Runtime dout_BTHD, qkv_BTN, out_BTHD;
  const float* lse_BHT;
  Runtime dqkv_BTN;
  const int32_t* starts_BT;
};

// lse[r] and delta[r] = sum_D dout * out of a tile's queries, whose dout is in shared memory; each
// warp has rows of its own.
template <typename Tile>
__device__ void LoadRowScalars(const Arrays& arrays, const HeadPlace& head, int64_t q0, int queries,
                               const float* dout, float* lse, float* delta) {
  for (int r = threadIdx.x / 32; r < Tile::kTile; r += kAttentionThreads / 32) {
    float sum = 0;
    if (r < queries) {
      for (int d = threadIdx.x % 32; d < head.D; d += 32) {
        sum += dout[r * Tile::kStride + d] * arrays.out_BTHD.Get(head.OutAt(q0 + r) + d);
      }
    }
    sum = WarpSum(sum);
    if (threadIdx.x % 32 == 0) {
      delta[r] = sum;
      lse[r] = r < queries ? arrays.lse_BHT[head.lse + q0 + r] : 0.0f;
    }
  }
}

// A block has a tile of queries: dq.
template <typename Tile>
__global__ void __launch_bounds__(kAttentionThreads)
    QueriesKernel(AttentionDims dims, Arrays arrays, float scale) {
  constexpr int kTile = Tile::kTile, kRows = Tile::kRows;
  extern __shared__ float4 shared4[];
  float* q = reinterpret_cast<float*>(shared4);
  float* dout = q + Tile::kHeadFloats;
  float* k = dout + Tile::kHeadFloats;
  float* v = k + Tile::kHeadFloats;
  float* ds_tile = v + Tile::kHeadFloats;
  float* lse = ds_tile + Tile::kScoreFloats;
  float* delta = lse + kTile;
  const TileOfHead at(dims, dims.H);
  const HeadPlace head(dims, at.b, at.h);
  const int64_t q0 = LastFirst(dims, at.tile, kTile);
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int queries = head.RowsFrom(q0, kTile);
  const int64_t stride = head.stride;
  Tile::Load(q, arrays.qkv_BTN, head.QueryAt(q0), stride, queries, head.D, scale);
  Tile::Load(dout, arrays.dout_BTHD, head.OutAt(q0), head.out_stride, queries, head.D);
  __syncthreads();
  LoadRowScalars<Tile>(arrays, head, q0, queries, dout, lse, delta);

  const VisibleKeys visible(arrays.starts_BT, at.b, dims.T);
  float4 dq[kRows][Tile::kGroups];
  Tile::Clear(dq);
  for (int64_t k0 = visible.First(q0) / kTile * kTile; k0 <= q0; k0 += kTile) {
    const int keys = head.RowsFrom(k0, kTile);
    __syncthreads();  // keys and ds of the last tile have been read; lse and delta are there
    Tile::Load(k, arrays.qkv_BTN, head.KeyAt(k0), stride, keys, head.D);
    Tile::Load(v, arrays.qkv_BTN, head.ValueAt(k0), stride, keys, head.D);
    __syncthreads();
    float s[kRows][kRows], dp[kRows][kRows];
    Tile::Scores(q, k, head.D, s);
    Tile::Scores(dout, v, head.D, dp);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = ty + kSide * i;
      const int64_t first = visible.First(q0 + r);
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int64_t key = k0 + tx + kSide * j;
        const bool seen = r < queries && key >= first && key <= q0 + r;
        const float p = seen ? __expf(s[i][j] - lse[r]) : 0.0f;
        s[i][j] = p * (dp[i][j] - delta[r]);
      }
    }
    Tile::StoreScores(ds_tile, s);
    __syncthreads();
    Tile::Accumulate(ds_tile, k, dq);
  }
  float scales[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) scales[i] = scale;
  Tile::Store(arrays.dqkv_BTN, head.QueryAt(q0), stride, queries, head.D, dq, scales);
}

// A block has a tile of keys and meets the queries that see them, of all heads that share it: dk
// and dv. Scores lie with a row for each key.
template <typename Tile>
__global__ void __launch_bounds__(kAttentionThreads)
    KeysKernel(AttentionDims dims, Arrays arrays, float scale) {
  constexpr int kTile = Tile::kTile, kRows = Tile::kRows;
  extern __shared__ float4 shared4[];
  float* k = reinterpret_cast<float*>(shared4);
  float* v = k + Tile::kHeadFloats;
  float* q = v + Tile::kHeadFloats;
  float* dout = q + Tile::kHeadFloats;
  float* scores = dout + Tile::kHeadFloats;  // p, then ds
  float* lse = scores + Tile::kScoreFloats;
  float* delta = lse + kTile;
  const TileOfHead at(dims, dims.G);
  const int64_t b = at.b, first_head = at.h * dims.Sharing();
  const HeadPlace own(dims, b, first_head);  // for its keys and values
  const int64_t k0 = static_cast<int64_t>(at.tile) * kTile;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int keys = own.RowsFrom(k0, kTile);
  const VisibleKeys visible(arrays.starts_BT, b, dims.T);
  Tile::Load(k, arrays.qkv_BTN, own.KeyAt(k0), own.stride, keys, own.D);
  Tile::Load(v, arrays.qkv_BTN, own.ValueAt(k0), own.stride, keys, own.D);

  float4 dk[kRows][Tile::kGroups], dv[kRows][Tile::kGroups];
  Tile::Clear(dk);
  Tile::Clear(dv);
  for (int64_t h = first_head; h < first_head + dims.Sharing(); ++h) {
    const HeadPlace head(dims, b, h);
    for (int64_t q0 = k0; q0 < head.T; q0 += kTile) {
      if (visible.First(q0) >= k0 + kTile) break;  // nor do later queries see these keys
      const int queries = head.RowsFrom(q0, kTile);
      __syncthreads();  // queries, lse, delta and ds of the last tile have been read
      Tile::Load(q, arrays.qkv_BTN, head.QueryAt(q0), head.stride, queries, head.D, scale);
      Tile::Load(dout, arrays.dout_BTHD, head.OutAt(q0), head.out_stride, queries, head.D);
      __syncthreads();
      LoadRowScalars<Tile>(arrays, head, q0, queries, dout, lse, delta);
      float s[kRows][kRows], ds[kRows][kRows];
      Tile::Scores(k, q, head.D, s);
      Tile::Scores(v, dout, head.D, ds);
      __syncthreads();  // lse and delta are there
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int r = tx + kSide * j;  // query
        const int64_t first = visible.First(q0 + r);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const int64_t key = k0 + ty + kSide * i;
          const bool seen = r < queries && key >= first && key <= q0 + r;
          const float p = seen ? __expf(s[i][j] - lse[r]) : 0.0f;
          s[i][j] = p;
          ds[i][j] = p * (ds[i][j] - delta[r]);
        }
      }
      Tile::StoreScores(scores, s);
      __syncthreads();
      Tile::Accumulate(scores, dout, dv);
      __syncthreads();
      Tile::StoreScores(scores, ds);
      __syncthreads();
      Tile::Accumulate(scores, q, dk);  // q carries the scale
    }
  }
  float ones[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) ones[i] = 1.0f;
  Tile::Store(arrays.dqkv_BTN, own.KeyAt(k0), own.stride, keys, own.D, dk, ones);
  Tile::Store(arrays.dqkv_BTN, own.ValueAt(k0), own.stride, keys, own.D, dv, ones);
}

}  // namespace

cudaError_t LaunchPlainAttentionBackward(const AttentionDims& dims, const FloatArray& dout_BTHD,
                                         const FloatArray& qkv_BTN, const FloatArray& out_BTHD,
                                         const float* lse_BHT, const int32_t* starts_BT,
                                         const FloatArray& dqkv_BTN, cudaStream_t stream) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(dims.D));
  const Arrays arrays{Runtime(dout_BTHD), Runtime(qkv_BTN), Runtime(out_BTHD), lse_BHT,
                      Runtime(dqkv_BTN),  starts_BT};
  return WithTiles(dims.D, [&](auto tiles) {
    using Tile = decltype(tiles);
    constexpr int kShared =
        (4 * Tile::kHeadFloats + Tile::kScoreFloats + 2 * Tile::kTile) * sizeof(float);
    const auto launch = [&](auto* kernel, int64_t heads) {
      const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
      if (error != cudaSuccess) return error;
      const unsigned grid = GridOfTiles(dims, heads, Tile::kTile);
      kernel<<<grid, kAttentionThreads, kShared, stream>>>(dims, arrays, scale);
      return cudaSuccess;
    };
    const cudaError_t error = launch(&QueriesKernel<Tile>, dims.H);
    return error != cudaSuccess ? error : launch(&KeysKernel<Tile>, dims.G);
  });
}

}  // namespace zeroplan::cuda
