// A block has a tile of queries and meets the tiles of keys one by one with an online softmax (as
// in FlashAttention), so that scores of a whole row never exist.
#include <cmath>

#include "executor/kernels/cuda/attention/attention_tiles.cuh"

namespace zeroplan::cuda {
namespace {

template <typename Tile>
__global__ void __launch_bounds__(kAttentionThreads)
    ForwardKernel(AttentionDims dims, Runtime qkv_BTN, const int32_t* starts_BT, Runtime out_BTHD,
                  float* lse_BHT, float scale) {
  constexpr int kTile = Tile::kTile, kRows = Tile::kRows;
  extern __shared__ float4 shared4[];
  float* q = reinterpret_cast<float*>(shared4);
  float* kv = q + Tile::kHeadFloats;  // keys, then values
  float* p = kv + Tile::kHeadFloats;
  const TileOfHead at(dims, dims.H);
  const HeadPlace head(dims, at.b, at.h);
  const int64_t q0 = LastFirst(dims, at.tile, kTile);
  const int tx = threadIdx.x % kSide, ty = threadIdx.x / kSide;
  const int queries = head.RowsFrom(q0, kTile);
  const int64_t stride = head.stride;
  Tile::Load(q, qkv_BTN, head.QueryAt(q0), stride, queries, head.D, scale);

  const VisibleKeys visible(starts_BT, at.b, dims.T);
  float max[kRows], sum[kRows];
  int first[kRows];  // key that a query sees
  float4 out[kRows][Tile::kGroups];
  Tile::Clear(out);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    max[i] = -INFINITY;
    sum[i] = 0;
    first[i] = visible.First(q0 + ty + kSide * i);
  }
  for (int64_t k0 = visible.First(q0) / kTile * kTile; k0 <= q0; k0 += kTile) {
    const int keys = head.RowsFrom(k0, kTile);
    __syncthreads();  // values and p of the last tile have been read
    Tile::Load(kv, qkv_BTN, head.KeyAt(k0), stride, keys, head.D);
    __syncthreads();
    float s[kRows][kRows];
    Tile::Scores(q, kv, head.D, s);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      // Key k is visible to query q if first <= k <= q; then it is below T too, for queries below
      // T. A row beyond T sees what its place says and is never written.
      const int64_t query = q0 + ty + kSide * i;
      float most = max[i];
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int64_t key = k0 + tx + kSide * j;
        if (key > query || key < first[i]) s[i][j] = -INFINITY;
        most = fmaxf(most, s[i][j]);
      }
      // -INFINITY still where this tile and those before it lie before the query's document.
      most = HalfWarpMax(most);
      const float shift = most == -INFINITY ? 0.0f : most;
      float row_sum = 0;
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        s[i][j] = __expf(s[i][j] - shift);
        row_sum += s[i][j];
      }
      const float correction = __expf(max[i] - shift);  // 0 at first
      sum[i] = sum[i] * correction + HalfWarpSum(row_sum);
      max[i] = most;
#pragma unroll
      for (int c = 0; c < Tile::kGroups; ++c) {
        out[i][c].x *= correction;
        out[i][c].y *= correction;
        out[i][c].z *= correction;
        out[i][c].w *= correction;
      }
    }
    Tile::StoreScores(p, s);
    __syncthreads();  // keys have been read
    Tile::Load(kv, qkv_BTN, head.ValueAt(k0), stride, keys, head.D);
    __syncthreads();
    Tile::Accumulate(p, kv, out);
  }
  float inverse[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    inverse[i] = 1.0f / sum[i];
    const int r = ty + kSide * i;
    if (tx == 0 && r < queries) lse_BHT[head.lse + q0 + r] = max[i] + logf(sum[i]);
  }
  Tile::Store(out_BTHD, head.OutAt(q0), head.out_stride, queries, head.D, out, inverse);
}

}  // namespace

cudaError_t LaunchPlainAttentionForward(const AttentionDims& dims, const FloatArray& qkv_BTN,
                                        const int32_t* starts_BT, const FloatArray& out_BTHD,
                                        float* lse_BHT, cudaStream_t stream) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(dims.D));
  return WithTiles(dims.D, [&](auto tiles) {
    using Tile = decltype(tiles);
    constexpr int kShared = (2 * Tile::kHeadFloats + Tile::kScoreFloats) * sizeof(float);
    const cudaError_t error = cudaFuncSetAttribute(
        ForwardKernel<Tile>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (error != cudaSuccess) return error;
    const unsigned grid = GridOfTiles(dims, dims.H, Tile::kTile);
    ForwardKernel<Tile><<<grid, kAttentionThreads, kShared, stream>>>(
        dims, Runtime(qkv_BTN), starts_BT, Runtime(out_BTHD), lse_BHT, scale);
    return cudaSuccess;
  });
}

}  // namespace zeroplan::cuda
