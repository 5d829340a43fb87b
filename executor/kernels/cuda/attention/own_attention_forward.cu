// Attention forward in the manner of FlashAttention 2 (Dao 2023, algorithm 1): a block has a tile
// of queries and walks over the tiles of keys that they see, from the last to the first; scores and
// probabilities stay in registers.
#include <cmath>

#include "executor/kernels/cuda/attention/own_tiles.cuh"

namespace zeroplan::cuda {
namespace {

struct Arrays {
  OwnAttention of;
  void* out_BTHD;
  float* lse_BHT;
  float scale;
};

template <typename Element, int kHeadSize, int kQueryRows, int kKeyRows, int kWarpCount>
struct Shape {
  using T = Element;
  static constexpr int kHead = kHeadSize, kQueries = kQueryRows, kKeys = kKeyRows;
  static constexpr int kThreads = 32 * kWarpCount;
  static constexpr int kRows = kQueries / kWarpCount, kRowTiles = kRows / 16;  // a warp's
  static constexpr int kStride = kHead + kRowGap;
  static constexpr int kShared = (kQueries + 2 * kKeys) * kStride * static_cast<int>(sizeof(T));
};

template <typename S>
__global__ void __launch_bounds__(S::kThreads) ForwardKernel(Arrays arrays) {
  using T = typename S::T;
  constexpr int kHead = S::kHead, kKeys = S::kKeys, kRowTiles = S::kRowTiles;
  constexpr int kStride = S::kStride, kKeyTiles = kKeys / 8;
  extern __shared__ float4 shared4[];
  T* const q_tile = reinterpret_cast<T*>(shared4);
  T* const k_tile = q_tile + S::kQueries * kStride;
  T* const v_tile = k_tile + kKeys * kStride;

  const OwnAttention& of = arrays.of;
  const TileOfHead at(of.dims, of.dims.H);
  const HeadPlace head(of.dims, at.b, at.h);
  const SeenKeys seen(of, at.b);
  const int q0 = static_cast<int>(LastFirst(of.dims, at.tile, S::kQueries));
  const int queries = head.RowsFrom(q0, S::kQueries);
  const T* const qkv = static_cast<const T*>(of.qkv_BTN);
  const auto copy_keys = [&](T* tile, int64_t head_at, int k0) {
    CopyTile<kKeys, kHead, S::kThreads>(tile, qkv + head_at + k0 * head.stride, head.stride,
                                        head.RowsFrom(k0, kKeys), head.D);
  };
  const int first_tile = seen.First(q0) / kKeys;
  int tile = (q0 + queries - 1) / kKeys;
  CopyTile<S::kQueries, kHead, S::kThreads>(q_tile, qkv + head.QueryAt(q0), head.stride, queries,
                                            head.D);
  copy_keys(k_tile, head.key, tile * kKeys);
  CommitCopies();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row0 = q0 + warp * S::kRows;  // the warp's queries
  const int warp_first = seen.First(row0), warp_last_first = seen.First(row0 + S::kRows - 1);
  float most[kRowTiles][2], sum[kRowTiles][2];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      most[i][e] = -INFINITY;
      sum[i][e] = 0;
    }
  }
  float out[kRowTiles][kHead / 8][4];
  ClearSums(out);
  const T* const q_at = q_tile + warp * S::kRows * kStride + PlaceOfRows<kStride>();
  const T* const k_at = k_tile + PlaceOfColumns<kStride>();
  const T* const v_at = v_tile + PlaceOfRows<kStride>();
  const float scale2 = arrays.scale * kLog2E;

  for (; tile >= first_tile; --tile) {
    const int k0 = tile * kKeys;
    WaitForCopiesBut<0>();
    __syncthreads();  // keys are there, and the values before them have been read
    copy_keys(v_tile, head.value, k0);
    CommitCopies();
    const bool sees = k0 < row0 + S::kRows && k0 + kKeys > warp_first;  // one of the warp's queries
    float s[kRowTiles][kKeyTiles][4];
    if (sees) {
      ClearSums(s);
      AddScores<T, kHead>(q_at, k_at, s);
    }
    WaitForCopiesBut<0>();
    __syncthreads();  // values are there, and the keys have been read
    if (tile > first_tile) {
      copy_keys(k_tile, head.key, k0 - kKeys);
      CommitCopies();
    }
    if (!sees) continue;
    if (of.soft_cap > 0) {
      const float in = arrays.scale / of.soft_cap, back = of.soft_cap / arrays.scale;
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) s[i][j][c] = back * tanhf(in * s[i][j][c]);
        }
      }
    }
    if (k0 + kKeys - 1 > row0 || k0 < warp_last_first) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int query = row0 + 16 * i + 8 * e + g, first = seen.First(query);
#pragma unroll
          for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
            for (int c = 2 * e; c < 2 * e + 2; ++c) {
              const int key = k0 + 8 * j + 2 * t + c % 2;
              if (key > query || key < first) s[i][j][c] = -INFINITY;
            }
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float max = most[i][e];
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
          max = fmaxf(max, fmaxf(s[i][j][2 * e], s[i][j][2 * e + 1]));
        }
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
        // -INFINITY still where the tiles up to here lie outside of what the query sees.
        const float shift = max == -INFINITY ? 0.0f : max * scale2;
        const float correction = Exp2(most[i][e] * scale2 - shift);  // 0 at first
        float row_sum = 0;
#pragma unroll
        for (int j = 0; j < kKeyTiles; ++j) {
#pragma unroll
          for (int c = 2 * e; c < 2 * e + 2; ++c) {
            s[i][j][c] = Exp2(s[i][j][c] * scale2 - shift);
            row_sum += s[i][j][c];
          }
        }
        most[i][e] = max;
        sum[i][e] = sum[i][e] * correction + row_sum;
#pragma unroll
        for (int n = 0; n < kHead / 8; ++n) {
          out[i][n][2 * e] *= correction;
          out[i][n][2 * e + 1] *= correction;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t p[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) ToFragment<T>(s[i][2 * k], s[i][2 * k + 1], p[i]);
#pragma unroll
      for (int n = 0; n < kHead / 8; n += 2) {
        uint32_t v[4];
        LoadMatrices<true>(v_at + 16 * k * kStride + 8 * n, v);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          MultiplyAdd<T>(out[i][n], p[i], v[0], v[1]);
          MultiplyAdd<T>(out[i][n + 1], p[i], v[2], v[3]);
        }
      }
    }
  }

  // The warp's queries were read by itself alone: its rows of out pass through their place.
  T* const rows = q_tile + warp * S::kRows * kStride;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float total = sum[i][e];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      float shift = most[i][e] * scale2;  // exponents of 2 are taken from it
      float part = 1;                     // the factor of out
      if (of.sinks_H != nullptr) {
        const float sink = of.sinks_H[at.h] * kLog2E, larger = fmaxf(shift, sink);
        part = Exp2(shift - larger);
        total = total * part + Exp2(sink - larger);
        shift = larger;
      }
      const int query = row0 + 16 * i + 8 * e + g;
      if (t == 0 && query < head.T) {
        arrays.lse_BHT[head.lse + query] = shift / kLog2E + logf(total);
      }
      const float inverse = part / total;
      T* const row = rows + (16 * i + 8 * e + g) * kStride + 2 * t;
#pragma unroll
      for (int n = 0; n < kHead / 8; ++n) {
        *reinterpret_cast<uint32_t*>(row + 8 * n) =
            PackTwo<T>(out[i][n][2 * e] * inverse, out[i][n][2 * e + 1] * inverse);
      }
    }
  }
  __syncwarp();
  T* const target = static_cast<T*>(arrays.out_BTHD) + head.OutAt(row0);
  constexpr int kChunks = kHead / 8;
  for (int chunk = lane; chunk < S::kRows * kChunks; chunk += 32) {
    const int r = chunk / kChunks, c = chunk % kChunks * 8;
    if (row0 + r < head.T && c < head.D) {
      *reinterpret_cast<Pack<T, 8>*>(target + r * head.out_stride + c) =
          *reinterpret_cast<const Pack<T, 8>*>(rows + r * kStride + c);
    }
  }
}

template <typename S>
cudaError_t Launch(const Arrays& arrays, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      ForwardKernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared);
  if (error != cudaSuccess) return error;
  const AttentionDims& dims = arrays.of.dims;
  ForwardKernel<S>
      <<<GridOfTiles(dims, dims.H, S::kQueries), S::kThreads, S::kShared, stream>>>(arrays);
  return cudaSuccess;
}

// fn(Shape<..>{}) for heads of so many channels. The tiles fit every GPU; those of heads of 256
// have twice the queries where a block may have 132 KiB (8.0, 8.7, 9.0, 10.0).
template <typename T, typename Fn>
auto WithShape(int64_t D, int shared_bytes, Fn&& fn) {
  using Roomy256 = Shape<T, 256, 128, 64, 8>;
  switch (OwnHead(D)) {
    case 64:
      return fn(Shape<T, 64, 128, 64, 4>{});
    case 96:
      return fn(Shape<T, 96, 128, 64, 4>{});
    case 128:
      return fn(Shape<T, 128, 128, 32, 4>{});
    default:
      return shared_bytes >= Roomy256::kShared ? fn(Roomy256{}) : fn(Shape<T, 256, 64, 64, 4>{});
  }
}

template <typename T>
cudaError_t LaunchHead(const Arrays& arrays, cudaStream_t stream) {
  return WithShape<T>(arrays.of.dims.D, arrays.of.shared_bytes,
                      [&](auto shape) { return Launch<decltype(shape)>(arrays, stream); });
}

}  // namespace

int OwnForwardSharedBytes(int64_t D, int shared_bytes) {
  return WithShape<Bf16>(D, shared_bytes, [](auto shape) { return decltype(shape)::kShared; });
}

cudaError_t LaunchOwnAttentionForward(const OwnAttention& of, void* out_BTHD, float* lse_BHT,
                                      cudaStream_t stream) {
  const Arrays arrays{of, out_BTHD, lse_BHT, 1.0f / std::sqrt(static_cast<float>(of.dims.D))};
  return of.dtype == Dtype::kBF16 ? LaunchHead<Bf16>(arrays, stream)
                                  : LaunchHead<Half>(arrays, stream);
}

}  // namespace zeroplan::cuda
