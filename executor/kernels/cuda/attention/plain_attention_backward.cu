// With p = exp(q k / sqrt(D) - lse), o = p v: dv = p^T do; dp = do v^T; ds = p (dp - sum_D do o);
// dq = ds k / sqrt(D); dk = ds^T q / sqrt(D). Probabilities are made again by both kernels.
#include <cmath>

#include "executor/kernels/cuda/attention/attention_tiles.cuh"

namespace zeroplan::cuda {
namespace {

struct Arrays {
  Runtime dout_BTC, qkv_BT3C, out_BTC;
  const float* lse_BHT;
  Runtime dqkv_BT3C;
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
        sum += dout[r * Tile::kStride + d] * arrays.out_BTC.Get(head.OutAt(q0 + r) + d);
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
    QueriesKernel(PlainAttentionDims dims, Arrays arrays, float scale) {
  constexpr int kTile = Tile::kTile, kRows = Tile::kRows;
  extern __shared__ float4 shared4[];
  float* q = reinterpret_cast<float*>(shared4);
  float* dout = q + Tile::kHeadFloats;
  float* k = dout + Tile::kHeadFloats;
  float* v = k + Tile::kHeadFloats;
  float* ds_tile = v + Tile::kHeadFloats;
  float* lse = ds_tile + Tile::kScoreFloats;
  float* delta = lse + kTile;
  const HeadPlace head(dims, blockIdx.x);
  const int64_t q0 = static_cast<int64_t>(gridDim.y - 1 - blockIdx.y) * kTile;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int queries = head.RowsFrom(q0, kTile);
  const int64_t stride = 3 * head.C;
  Tile::Load(q, arrays.qkv_BT3C, head.QueryAt(q0), stride, queries, head.D, scale);
  Tile::Load(dout, arrays.dout_BTC, head.OutAt(q0), head.C, queries, head.D);
  __syncthreads();
  LoadRowScalars<Tile>(arrays, head, q0, queries, dout, lse, delta);

  float4 dq[kRows][Tile::kGroups];
  Tile::Clear(dq);
  for (int64_t k0 = 0; k0 <= q0; k0 += kTile) {
    const int keys = head.RowsFrom(k0, kTile);
    __syncthreads();  // keys and ds of the last tile have been read; lse and delta are there
    Tile::Load(k, arrays.qkv_BT3C, head.KeyAt(k0), stride, keys, head.D);
    Tile::Load(v, arrays.qkv_BT3C, head.ValueAt(k0), stride, keys, head.D);
    __syncthreads();
    float s[kRows][kRows], dp[kRows][kRows];
    Tile::Scores(q, k, head.D, s);
    Tile::Scores(dout, v, head.D, dp);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = ty + kSide * i;
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const bool visible = r < queries && k0 + tx + kSide * j <= q0 + r;
        const float p = visible ? __expf(s[i][j] - lse[r]) : 0.0f;
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
  Tile::Store(arrays.dqkv_BT3C, head.QueryAt(q0), stride, queries, head.D, dq, scales);
}

// A block has a tile of keys and meets the queries that see them: dk and dv. Scores lie with a row
// for each key.
template <typename Tile>
__global__ void __launch_bounds__(kAttentionThreads)
    KeysKernel(PlainAttentionDims dims, Arrays arrays, float scale) {
  constexpr int kTile = Tile::kTile, kRows = Tile::kRows;
  extern __shared__ float4 shared4[];
  float* k = reinterpret_cast<float*>(shared4);
  float* v = k + Tile::kHeadFloats;
  float* q = v + Tile::kHeadFloats;
  float* dout = q + Tile::kHeadFloats;
  float* scores = dout + Tile::kHeadFloats;  // p, then ds
  float* lse = scores + Tile::kScoreFloats;
  float* delta = lse + kTile;
  const HeadPlace head(dims, blockIdx.x);
  const int64_t k0 = static_cast<int64_t>(blockIdx.y) * kTile;
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int keys = head.RowsFrom(k0, kTile);
  const int64_t stride = 3 * head.C;
  Tile::Load(k, arrays.qkv_BT3C, head.KeyAt(k0), stride, keys, head.D);
  Tile::Load(v, arrays.qkv_BT3C, head.ValueAt(k0), stride, keys, head.D);

  float4 dk[kRows][Tile::kGroups], dv[kRows][Tile::kGroups];
  Tile::Clear(dk);
  Tile::Clear(dv);
  for (int64_t q0 = k0; q0 < head.T; q0 += kTile) {
    const int queries = head.RowsFrom(q0, kTile);
    __syncthreads();  // queries, lse, delta and ds of the last tile have been read
    Tile::Load(q, arrays.qkv_BT3C, head.QueryAt(q0), stride, queries, head.D, scale);
    Tile::Load(dout, arrays.dout_BTC, head.OutAt(q0), head.C, queries, head.D);
    __syncthreads();
    LoadRowScalars<Tile>(arrays, head, q0, queries, dout, lse, delta);
    float s[kRows][kRows], ds[kRows][kRows];
    Tile::Scores(k, q, head.D, s);
    Tile::Scores(v, dout, head.D, ds);
    __syncthreads();  // lse and delta are there
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int r = tx + kSide * j;  // query
        const bool visible = r < queries && k0 + ty + kSide * i <= q0 + r;
        const float p = visible ? __expf(s[i][j] - lse[r]) : 0.0f;
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
  float ones[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) ones[i] = 1.0f;
  Tile::Store(arrays.dqkv_BT3C, head.KeyAt(k0), stride, keys, head.D, dk, ones);
  Tile::Store(arrays.dqkv_BT3C, head.ValueAt(k0), stride, keys, head.D, dv, ones);
}

}  // namespace

cudaError_t LaunchPlainAttentionBackward(const PlainAttentionDims& dims, const FloatArray& dout_BTC,
                                         const FloatArray& qkv_BT3C, const FloatArray& out_BTC,
                                         const float* lse_BHT, const FloatArray& dqkv_BT3C,
                                         cudaStream_t stream) {
  const int64_t D = dims.C / dims.H;
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const Arrays arrays{Runtime(dout_BTC), Runtime(qkv_BT3C), Runtime(out_BTC), lse_BHT,
                      Runtime(dqkv_BT3C)};
  return WithTiles(D, [&](auto tiles) {
    using Tile = decltype(tiles);
    constexpr int kShared =
        (4 * Tile::kHeadFloats + Tile::kScoreFloats + 2 * Tile::kTile) * sizeof(float);
    const dim3 grid(static_cast<unsigned>(dims.B * dims.H), GridOf(dims.T, Tile::kTile));
    for (auto* kernel : {&QueriesKernel<Tile>, &KeysKernel<Tile>}) {
      const cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
      if (error != cudaSuccess) return error;
      kernel<<<grid, kAttentionThreads, kShared, stream>>>(dims, arrays, scale);
    }
    return cudaSuccess;
  });
}

}  // namespace zeroplan::cuda
