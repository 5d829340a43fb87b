// Attention backward in the manner of FlashAttention 2 (Dao 2023, algorithm 2): a block has a tile
// of keys and walks over the tiles of queries that see them, for every query head that shares the
// keys. Scores are made transposed, keys by queries, so that P^T and dS^T are the A operands of
// dV = P^T dO and dK = dS^T Q without leaving registers. dQ = dS K needs all keys: dS passes
// through shared memory, and tiles of dQ are added up in fp32 in the workspace, in the order of
// registers.
//
// With p = exp(s - lse): dp = do v^T; ds = p (dp - delta), delta = sum_D do * o. A soft cap gives
// ds the factor 1 - (s / cap)^2. A sink takes part in lse alone; its gradient is
// -sum exp(sink - lse) * delta.
#include <cmath>

#include "executor/kernels/cuda/attention/own_tiles.cuh"

namespace zeroplan::cuda {
namespace {

struct Arrays {
  OwnAttention of;
  const void* dout_BTHD;
  const float *lse_BHT, *delta_BHT;
  void* dqkv_BTN;
  float* dq;   // tiles of sums, zero at first
  int* turns;  // null: tiles are added up in any order. Else zeros: a count for each tile of dq,
               // and the number of blocks that began
  float scale;
};

// kKeyTiles: times 16 keys of a warp. A tile of keys is shared out over kKeyWarps warps, channels
// of dK and dV over kChannelWarps; of dQ, queries over kDqRowWarps and channels over the rest.
template <typename Element, int kHeadSize, int kQueryRows, int kKeyTileCount, int kKeyWarpCount,
          int kChannelWarpCount, int kDqRowWarpCount>
struct Shape {
  using T = Element;
  static constexpr int kHead = kHeadSize, kQueries = kQueryRows, kKeyTiles = kKeyTileCount;
  static constexpr int kKeyWarps = kKeyWarpCount, kChannelWarps = kChannelWarpCount;
  static constexpr int kWarps = kKeyWarps * kChannelWarps, kThreads = 32 * kWarps;
  static constexpr int kKeys = 16 * kKeyTiles * kKeyWarps;
  static constexpr int kChannels = kHead / kChannelWarps;  // a warp's of dK and dV
  static constexpr int kDqRowWarps = kDqRowWarpCount, kDqChannelWarps = kWarps / kDqRowWarps;
  static constexpr int kDqTiles = kQueries / kDqRowWarps / 16;  // times 16 queries of a warp
  static constexpr int kDqChannels = kHead / kDqChannelWarps;
  static constexpr int kStride = kHead + kRowGap, kDsStride = kQueries + kRowGap;
  static constexpr int kTileElements = (2 * kKeys + 2 * kQueries) * kStride + kKeys * kDsStride;
  static constexpr int kShared = kTileElements * sizeof(T) + 3 * kQueries * sizeof(float);
  static_assert(kOwnQueryTile % kQueries == 0 && kQueries >= kOwnTurnRows);
  static_assert(kDqTiles * kDqRowWarps * 16 == kQueries);
  static_assert(kChannels % 16 == 0 && kDqChannels % 16 == 0);

  // Tile of dq of the rows from q0 on, of query head h of sequence b.
  __device__ static float* DqTile(float* dq, const AttentionDims& dims, int b, int h, int q0) {
    const int64_t rows = (dims.T + kOwnQueryTile - 1) / kOwnQueryTile * kOwnQueryTile;
    return dq + ((b * dims.H + h) * rows + q0) * kHead;
  }
};

__device__ inline void CopyAsync4OrZero(void* shared, const void* global, bool there) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global),
               "r"(there ? 4 : 0)
               : "memory");
}

// Waits until so many blocks have added to a tile of dq. The load need not acquire, which would
// empty the first level of caches: the additions that follow are made in the second, and no GPU
// issues them before it has taken the branch.
__device__ inline void AwaitTurn(const int* turn, int before) {
  int now;
  do {
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != before);
}

// After a barrier that the block's additions came before.
__device__ inline void EndTurn(int* turn) {
  __threadfence();
  atomicAdd(turn, 1);
}

template <typename S>
__global__ void __launch_bounds__(S::kThreads) BackwardKernel(Arrays arrays) {
  using T = typename S::T;
  constexpr int kHead = S::kHead, kQueries = S::kQueries, kKeys = S::kKeys;
  constexpr int kStride = S::kStride, kKeyTiles = S::kKeyTiles, kQueryTiles = kQueries / 8;
  extern __shared__ float4 shared4[];
  T* const k_tile = reinterpret_cast<T*>(shared4);
  T* const v_tile = k_tile + kKeys * kStride;
  T* const q_tile = v_tile + kKeys * kStride;
  T* const dout_tile = q_tile + kQueries * kStride;
  T* const ds_tile = dout_tile + kQueries * kStride;  // keys by queries
  float* const lse_Q = reinterpret_cast<float*>(ds_tile + kKeys * S::kDsStride);
  float* const delta_Q = lse_Q + kQueries;
  int* const start_Q = reinterpret_cast<int*>(delta_Q + kQueries);

  const OwnAttention& of = arrays.of;
  const AttentionDims& dims = of.dims;
  const int T_ = static_cast<int>(dims.T);
  const int tiles_of_keys = (T_ + kKeys - 1) / kKeys;
  const bool ordered = arrays.turns != nullptr;
  const int64_t tiles_of_dq = (dims.T + kQueries - 1) / kQueries;
  // The first keys, which most queries see, come first; in order, each block adds after that of the
  // next keys, which has to have begun.
  unsigned block = blockIdx.x;
  if (ordered) {
    if (threadIdx.x == 0) *start_Q = atomicAdd(arrays.turns + dims.B * dims.H * tiles_of_dq, 1);
    __syncthreads();
    block = static_cast<unsigned>(*start_Q);
    __syncthreads();
  }
  const unsigned heads = static_cast<unsigned>(dims.G), all = static_cast<unsigned>(dims.B) * heads;
  const int place = static_cast<int>(block / all);
  const int b = static_cast<int>(block % all / heads), key_head = static_cast<int>(block % heads);
  const int key_tile = ordered ? tiles_of_keys - 1 - place : place;
  const int k0 = key_tile * kKeys;
  const int sharing = static_cast<int>(dims.Sharing());
  const HeadPlace keys_head(dims, b, key_head * sharing);
  const int keys = keys_head.RowsFrom(k0, kKeys), D = keys_head.D;
  const int64_t stride = keys_head.stride, out_stride = keys_head.out_stride;
  const SeenKeys seen(of, b);
  const T* const qkv = static_cast<const T*>(of.qkv_BTN);
  const T* const dout = static_cast<const T*>(arrays.dout_BTHD);

  // The tiles of queries that see one of the keys: from the keys' own on, as long as the first
  // query's first key is not past them.
  const int first_tile = k0 / kQueries;
  int end_tile = first_tile + 1, beyond = (T_ + kQueries - 1) / kQueries;
  while (end_tile < beyond) {
    const int middle = (end_tile + beyond) / 2;
    if (seen.First(middle * kQueries) < k0 + kKeys) {
      end_tile = middle + 1;
    } else {
      beyond = middle;
    }
  }
  const int first_head = key_head * sharing, end_head = first_head + sharing;

  const auto copy_queries = [&](int h, int tile) {
    const int q0 = tile * kQueries;
    const HeadPlace head(dims, b, h);
    const int queries = head.RowsFrom(q0, kQueries);
    CopyTile<kQueries, kHead, S::kThreads>(q_tile, qkv + head.QueryAt(q0), stride, queries, D);
    CopyTile<kQueries, kHead, S::kThreads>(dout_tile, dout + head.OutAt(q0), out_stride, queries,
                                           D);
    for (int i = threadIdx.x; i < kQueries; i += S::kThreads) {
      const bool there = i < queries;
      const int64_t row = head.lse + (there ? q0 + i : 0);
      CopyAsync4OrZero(lse_Q + i, arrays.lse_BHT + row, there);
      CopyAsync4OrZero(delta_Q + i, arrays.delta_BHT + row, there);
      start_Q[i] = seen.First(q0 + i);
    }
    CommitCopies();
  };
  CopyTile<kKeys, kHead, S::kThreads>(k_tile, qkv + keys_head.KeyAt(k0), stride, keys, D);
  CopyTile<kKeys, kHead, S::kThreads>(v_tile, qkv + keys_head.ValueAt(k0), stride, keys, D);
  copy_queries(first_head, first_tile);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp_keys = warp / S::kChannelWarps * 16 * kKeyTiles;  // the warp's, in the tile
  const int warp_channel = warp % S::kChannelWarps * S::kChannels;
  const int dq_row = warp % S::kDqRowWarps * 16 * S::kDqTiles;
  const int dq_channel = warp / S::kDqRowWarps * S::kDqChannels;
  const int by_rows = PlaceOfRows<kStride>(), by_columns = PlaceOfColumns<kStride>();
  const T* const k_rows = k_tile + warp_keys * kStride + by_rows;
  const T* const v_rows = v_tile + warp_keys * kStride + by_rows;
  const T* const q_columns = q_tile + by_columns;
  const T* const dout_columns = dout_tile + by_columns;
  const T* const q_depth = q_tile + warp_channel + by_rows;
  const T* const dout_depth = dout_tile + warp_channel + by_rows;
  const T* const ds_depth = ds_tile + dq_row + PlaceOfColumns<S::kDsStride>();
  const T* const k_depth = k_tile + dq_channel + by_rows;
  const float scale2 = arrays.scale * kLog2E;
  float dk[kKeyTiles][S::kChannels / 8][4], dv[kKeyTiles][S::kChannels / 8][4];
  ClearSums(dk);
  ClearSums(dv);

  // The number of blocks that have added to a tile of dq.
  const auto turn_of = [&](int h, int tile) {
    return arrays.turns + (b * dims.H + h) * tiles_of_dq + tile;
  };
  int h = first_head, tile = first_tile;
  while (h < end_head) {
    const int q0 = tile * kQueries;
    const bool last_tile = tile + 1 == end_tile;
    const int next_h = h + (last_tile ? 1 : 0), next_tile = last_tile ? first_tile : tile + 1;
    WaitForCopiesBut<0>();
    __syncthreads();  // queries are there, and ds has been read
    float s[kKeyTiles][kQueryTiles][4];
    ClearSums(s);
    AddScores<T, kHead>(k_rows, q_columns, s);
    if (of.soft_cap > 0) {
      const float in = arrays.scale / of.soft_cap, back = of.soft_cap / arrays.scale;
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kQueryTiles; ++j) {
#pragma unroll
          for (int c = 0; c < 4; ++c) s[i][j][c] = back * tanhf(in * s[i][j][c]);
        }
      }
    }
    const bool masked =
        k0 + kKeys - 1 > q0 || start_Q[kQueries - 1] > k0;  // a key for one of the queries
#pragma unroll
    for (int j = 0; j < kQueryTiles; ++j) {
      const float2 lse = *reinterpret_cast<const float2*>(lse_Q + 8 * j + 2 * t);
      const float lse2[2] = {lse.x * kLog2E, lse.y * kLog2E};
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) s[i][j][c] = Exp2(s[i][j][c] * scale2 - lse2[c % 2]);
      }
    }
    if (masked) {
#pragma unroll
      for (int j = 0; j < kQueryTiles; ++j) {
        const int2 start = *reinterpret_cast<const int2*>(start_Q + 8 * j + 2 * t);
#pragma unroll
        for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int key = k0 + warp_keys + 16 * i + c / 2 * 8 + g;
            const int query = q0 + 8 * j + 2 * t + c % 2;
            if (key > query || key < (c % 2 == 0 ? start.x : start.y)) s[i][j][c] = 0;
          }
        }
      }
    }
    // dV = P^T dO.
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      uint32_t p[kKeyTiles][4];
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) ToFragment<T>(s[i][2 * k], s[i][2 * k + 1], p[i]);
#pragma unroll
      for (int n = 0; n < S::kChannels / 8; n += 2) {
        uint32_t rows[4];
        LoadMatrices<true>(dout_depth + 16 * k * kStride + 8 * n, rows);
#pragma unroll
        for (int i = 0; i < kKeyTiles; ++i) {
          MultiplyAdd<T>(dv[i][n], p[i], rows[0], rows[1]);
          MultiplyAdd<T>(dv[i][n + 1], p[i], rows[2], rows[3]);
        }
      }
    }
    // dP, then dS in its place.
    float ds[kKeyTiles][kQueryTiles][4];
    ClearSums(ds);
    AddScores<T, kHead>(v_rows, dout_columns, ds);
#pragma unroll
    for (int j = 0; j < kQueryTiles; ++j) {
      const float2 delta = *reinterpret_cast<const float2*>(delta_Q + 8 * j + 2 * t);
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          ds[i][j][c] = s[i][j][c] * (ds[i][j][c] - (c % 2 == 0 ? delta.x : delta.y));
        }
      }
    }
    if (of.soft_cap > 0) {
      // s / cap from p = exp(s - lse).
#pragma unroll
      for (int j = 0; j < kQueryTiles; ++j) {
        const float2 lse = *reinterpret_cast<const float2*>(lse_Q + 8 * j + 2 * t);
#pragma unroll
        for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const float share = (__logf(s[i][j][c]) + (c % 2 == 0 ? lse.x : lse.y)) / of.soft_cap;
            ds[i][j][c] = s[i][j][c] > 0 ? ds[i][j][c] * (1 - share * share) : 0.0f;
          }
        }
      }
    }
    // dK = dS^T Q, and dS^T to the other warps.
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) {
      uint32_t a[kKeyTiles][4];
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
        ToFragment<T>(ds[i][2 * k], ds[i][2 * k + 1], a[i]);
        if (S::kChannelWarps == 1 || warp_channel == 0) {
          T* const row = ds_tile + (warp_keys + 16 * i + g) * S::kDsStride + 16 * k + 2 * t;
          *reinterpret_cast<uint32_t*>(row) = a[i][0];
          *reinterpret_cast<uint32_t*>(row + 8 * S::kDsStride) = a[i][1];
          *reinterpret_cast<uint32_t*>(row + 8) = a[i][2];
          *reinterpret_cast<uint32_t*>(row + 8 * S::kDsStride + 8) = a[i][3];
        }
      }
#pragma unroll
      for (int n = 0; n < S::kChannels / 8; n += 2) {
        uint32_t rows[4];
        LoadMatrices<true>(q_depth + 16 * k * kStride + 8 * n, rows);
#pragma unroll
        for (int i = 0; i < kKeyTiles; ++i) {
          MultiplyAdd<T>(dk[i][n], a[i], rows[0], rows[1]);
          MultiplyAdd<T>(dk[i][n + 1], a[i], rows[2], rows[3]);
        }
      }
    }
    __syncthreads();  // dS is there, and queries have been read
    // In order, a block lets the next one go on half a step later, when its additions are through.
    if (ordered && threadIdx.x == 0) {
      if (tile > first_tile) {
        EndTurn(turn_of(h, tile - 1));
      } else if (h > first_head) {
        EndTurn(turn_of(h - 1, end_tile - 1));
      }
      AwaitTurn(turn_of(h, tile), (min(q0 + kQueries, T_) - 1) / kKeys - key_tile);
    }
    if (next_h < end_head) copy_queries(next_h, next_tile);
    float dq[S::kDqTiles][S::kDqChannels / 8][4];
    ClearSums(dq);
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      uint32_t a[S::kDqTiles][4];
#pragma unroll
      for (int i = 0; i < S::kDqTiles; ++i) {
        LoadMatrices<true>(ds_depth + 16 * k * S::kDsStride + 16 * i, a[i]);
      }
#pragma unroll
      for (int n = 0; n < S::kDqChannels / 8; n += 2) {
        uint32_t rows[4];
        LoadMatrices<true>(k_depth + 16 * k * kStride + 8 * n, rows);
#pragma unroll
        for (int i = 0; i < S::kDqTiles; ++i) {
          MultiplyAdd<T>(dq[i][n], a[i], rows[0], rows[1]);
          MultiplyAdd<T>(dq[i][n + 1], a[i], rows[2], rows[3]);
        }
      }
    }
    if (ordered) __syncthreads();  // it is this block's turn
    float* const sums = S::DqTile(arrays.dq, dims, b, h, q0) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < S::kDqTiles; ++i) {
#pragma unroll
      for (int n = 0; n < S::kDqChannels / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          atomicAdd(sums + ((i * S::kDqChannels / 8 + n) * 4 + c) * S::kThreads, dq[i][n][c]);
        }
      }
    }
    h = next_h;
    tile = next_tile;
  }

  __syncthreads();  // keys have been read
  if (ordered && threadIdx.x == 0) EndTurn(turn_of(end_head - 1, end_tile - 1));
#pragma unroll
  for (int i = 0; i < kKeyTiles; ++i) {
#pragma unroll
    for (int n = 0; n < S::kChannels / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int place_of =
            (warp_keys + 16 * i + 8 * e + g) * kStride + warp_channel + 8 * n + 2 * t;
        *reinterpret_cast<uint32_t*>(k_tile + place_of) =
            PackTwo<T>(arrays.scale * dk[i][n][2 * e], arrays.scale * dk[i][n][2 * e + 1]);
        *reinterpret_cast<uint32_t*>(v_tile + place_of) =
            PackTwo<T>(dv[i][n][2 * e], dv[i][n][2 * e + 1]);
      }
    }
  }
  __syncthreads();
  T* const dqkv = static_cast<T*>(arrays.dqkv_BTN);
  StoreTile<kKeys, kHead, S::kThreads>(k_tile, dqkv + keys_head.KeyAt(k0), stride, keys, D);
  StoreTile<kKeys, kHead, S::kThreads>(v_tile, dqkv + keys_head.ValueAt(k0), stride, keys, D);
}

// The sums of dq, in the order of BackwardKernel's registers, to rows in 16 bits.
template <typename S>
__global__ void __launch_bounds__(S::kThreads) QueriesKernel(Arrays arrays) {
  using T = typename S::T;
  __shared__ __align__(16) T rows[S::kQueries * S::kStride];
  const AttentionDims& dims = arrays.of.dims;
  const TileOfHead at(dims, dims.H);
  const HeadPlace head(dims, at.b, at.h);
  const int q0 = static_cast<int>(at.tile) * S::kQueries;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int dq_row = warp % S::kDqRowWarps * 16 * S::kDqTiles;
  const int dq_channel = warp / S::kDqRowWarps * S::kDqChannels;
  const float* const sums =
      S::DqTile(arrays.dq, dims, static_cast<int>(at.b), static_cast<int>(at.h), q0) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < S::kDqTiles; ++i) {
#pragma unroll
    for (int n = 0; n < S::kDqChannels / 8; ++n) {
      float v[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        v[c] = arrays.scale * sums[((i * S::kDqChannels / 8 + n) * 4 + c) * S::kThreads];
      }
      T* const row = rows + (dq_row + 16 * i + g) * S::kStride + dq_channel + 8 * n + 2 * t;
      *reinterpret_cast<uint32_t*>(row) = PackTwo<T>(v[0], v[1]);
      *reinterpret_cast<uint32_t*>(row + 8 * S::kStride) = PackTwo<T>(v[2], v[3]);
    }
  }
  __syncthreads();
  StoreTile<S::kQueries, S::kHead, S::kThreads>(
      rows, static_cast<T*>(arrays.dqkv_BTN) + head.QueryAt(q0), head.stride,
      head.RowsFrom(q0, S::kQueries), head.D);
}

// delta[r] = sum_D dout * out. kLanes threads share a row, 8 channels each.
constexpr int kRowThreads = 256;
template <typename T, int kLanes>
__global__ void __launch_bounds__(kRowThreads)
    RowSumsKernel(AttentionDims dims, const T* dout_BTHD, const T* out_BTHD, float* delta_BHT) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) / kLanes;
  const int channel = threadIdx.x % kLanes * 8;
  const bool there = row < dims.B * dims.T * dims.H;
  float sum = 0;
  if (there && channel < dims.D) {
    float a[8], b[8];
    Widen(LoadPack<T, 8>(dout_BTHD + row * dims.D + channel), a);
    Widen(LoadPack<T, 8>(out_BTHD + row * dims.D + channel), b);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += a[e] * b[e];
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset >>= 1) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (there && channel == 0) {
    const int64_t token = row / dims.H, h = row % dims.H;
    delta_BHT[(token / dims.T * dims.H + h) * dims.T + token % dims.T] = sum;
  }
}

// dsinks[h] = -sum exp(sink - lse) * delta over the rows of a head, a block each.
__global__ void __launch_bounds__(kRowThreads)
    SinksKernel(AttentionDims dims, const float* sinks_H, const float* lse_BHT,
                const float* delta_BHT, float* dsinks_H) {
  __shared__ float shared[kRowThreads / 32];
  const int64_t h = blockIdx.x;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < dims.B * dims.T; i += kRowThreads) {
    const int64_t row = (i / dims.T * dims.H + h) * dims.T + i % dims.T;
    sum -= __expf(sinks_H[h] - lse_BHT[row]) * delta_BHT[row];
  }
  sum = BlockSum<kRowThreads>(sum, shared);
  if (threadIdx.x == 0) dsinks_H[h] = sum;
}

template <typename T>
void LaunchRowSums(const AttentionDims& dims, const OwnGradients& grads, float* delta,
                   cudaStream_t stream) {
  const auto launch = [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    const unsigned grid = GridOf(dims.B * dims.T * dims.H * kLanes, kRowThreads);
    RowSumsKernel<T, kLanes><<<grid, kRowThreads, 0, stream>>>(
        dims, static_cast<const T*>(grads.dout_BTHD), static_cast<const T*>(grads.out_BTHD), delta);
  };
  if (dims.D <= 64) return launch(Int<8>{});
  if (dims.D <= 128) return launch(Int<16>{});
  launch(Int<32>{});
}

template <typename S>
cudaError_t Launch(const Arrays& arrays, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      BackwardKernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared);
  if (error != cudaSuccess) return error;
  const AttentionDims& dims = arrays.of.dims;
  BackwardKernel<S>
      <<<GridOfTiles(dims, dims.G, S::kKeys), S::kThreads, S::kShared, stream>>>(arrays);
  QueriesKernel<S><<<GridOfTiles(dims, dims.H, S::kQueries), S::kThreads, 0, stream>>>(arrays);
  return cudaSuccess;
}

// fn(Shape<..>{}) for heads of so many channels. The tiles fit every GPU; those of heads of 128
// have twice the keys where a block may have 121 KiB (8.0, 8.7, 9.0, 10.0): half of the reads of
// queries, and half of the additions to dQ.
template <typename T, typename Fn>
auto WithShape(int64_t D, int shared_bytes, Fn&& fn) {
  using Roomy128 = Shape<T, 128, 64, 1, 8, 1, 2>;
  switch (OwnHead(D)) {
    case 64:
      return fn(Shape<T, 64, 32, 2, 4, 1, 2>{});
    case 96:
      return fn(Shape<T, 96, 64, 1, 4, 1, 2>{});
    case 128:
      return shared_bytes >= Roomy128::kShared ? fn(Roomy128{})
                                               : fn(Shape<T, 128, 64, 1, 4, 1, 2>{});
    default:
      return fn(Shape<T, 256, 32, 1, 2, 2, 1>{});
  }
}

template <typename T>
cudaError_t LaunchHead(const Arrays& arrays, cudaStream_t stream) {
  return WithShape<T>(arrays.of.dims.D, arrays.of.shared_bytes,
                      [&](auto shape) { return Launch<decltype(shape)>(arrays, stream); });
}

}  // namespace

int OwnBackwardSharedBytes(int64_t D, int shared_bytes) {
  return WithShape<Bf16>(D, shared_bytes, [](auto shape) { return decltype(shape)::kShared; });
}

cudaError_t LaunchOwnAttentionBackward(const OwnAttention& of, const OwnGradients& grads,
                                       cudaStream_t stream) {
  const AttentionDims& dims = of.dims;
  const OwnAttentionWorkspace at =
      OwnAttentionWorkspaceOf({dims.B, dims.T, dims.H, dims.G, dims.D});
  char* const workspace = static_cast<char*>(grads.workspace);
  float* const delta = reinterpret_cast<float*>(workspace + at.delta);
  int* const turns = reinterpret_cast<int*>(workspace + at.turns);
  const cudaError_t zeroed = cudaMemsetAsync(workspace + at.dq, 0, at.delta - at.dq, stream);
  if (zeroed != cudaSuccess) return zeroed;
  if (grads.deterministic) {
    const cudaError_t error = cudaMemsetAsync(turns, 0, at.bytes - at.turns, stream);
    if (error != cudaSuccess) return error;
  }
  const Arrays arrays{.of = of,
                      .dout_BTHD = grads.dout_BTHD,
                      .lse_BHT = grads.lse_BHT,
                      .delta_BHT = delta,
                      .dqkv_BTN = grads.dqkv_BTN,
                      .dq = reinterpret_cast<float*>(workspace + at.dq),
                      .turns = grads.deterministic ? turns : nullptr,
                      .scale = 1.0f / std::sqrt(static_cast<float>(dims.D))};
  const bool bf16 = of.dtype == Dtype::kBF16;
  if (bf16) {
    LaunchRowSums<Bf16>(dims, grads, delta, stream);
  } else {
    LaunchRowSums<Half>(dims, grads, delta, stream);
  }
  if (grads.dsinks_H != nullptr) {
    SinksKernel<<<static_cast<unsigned>(dims.H), kRowThreads, 0, stream>>>(
        dims, of.sinks_H, grads.lse_BHT, delta, grads.dsinks_H);
  }
  return bf16 ? LaunchHead<Bf16>(arrays, stream) : LaunchHead<Half>(arrays, stream);
}

}  // namespace zeroplan::cuda
