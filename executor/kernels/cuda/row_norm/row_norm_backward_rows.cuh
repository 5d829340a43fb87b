// The norms' backward kernel for C in multiples of 16 bytes and one dtype. Legend: M rows, C
// channels.
//
// With n = (x - mean) * rstd and d = dy * w: dx = (d - mean(d) - n * mean(d * n)) * rstd,
// dw = sum_M dy * n, db = sum_M dy. RMS norm has neither the mean of x, nor that of d, nor b.
#pragma once

#include "executor/kernels/cuda/async_copy.cuh"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/row_norm/row_norm.h"

namespace zeroplan::cuda::row_norm_backward {

// Of a block, for so many elements a thread: the registers of two blocks or of one.
template <int kElements>
constexpr int kMaxThreads = kElements == 8 ? 448 : 512;
template <int kElements>
constexpr int kBlocksTogether = kElements == 8 ? 2 : 1;  // on a multiprocessor
// The most columns that so many elements a thread can take.
template <int kElements>
constexpr int64_t kMostColumns = kElements * kMaxThreads<kElements>;

constexpr int kMostWarps = 16;
constexpr int kMaxStages = 4;
constexpr int64_t kMostRows = 1 << 30;  // row numbers are int, some rows past the end too

template <typename T>
struct Inputs {
  const T *dy_MC, *x_MC, *w_C;
  const float* stats;
};

// Sums of dw and, behind them, db.
template <RowNorm kNorm>
constexpr int kWeightSums = kNorm == RowNorm::kLayer ? 2 : 1;

// Sums of a and b over the warp, in 5 shuffles: lanes 0 to 15 get a's, the others b's.
__device__ inline float TwoWarpSums(float a, float b) {
  const bool upper = threadIdx.x % 32 >= 16;
  float sum = upper ? b : a;
  sum += __shfl_xor_sync(0xffffffffu, upper ? a : b, 16);
#pragma unroll
  for (int offset = 8; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}

constexpr int kMostSyncedGroups = 4;

// A barrier of the `threads` threads (whole warps) of a group, as __syncthreads is the block's.
// Numbers that are known when compiling: a block is given no more barriers than it needs.
__device__ inline void SyncGroup(int group, int threads) {
  __syncwarp();
  switch (group) {
    case 0:
      asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
      break;
    case 1:
      asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory");
      break;
    case 2:
      asm volatile("bar.sync 3, %0;" ::"r"(threads) : "memory");
      break;
    default:
      asm volatile("bar.sync 4, %0;" ::"r"(threads) : "memory");
      break;
  }
}

// A group of blockDim.x threads (whole warps) works on a row, kElements elements a thread, in
// pieces of 16 bytes; the blockDim.y groups of a block take rows of their own and do not wait for
// one another. While a row is summed the next ones are on their way into the group's ring of
// `stages` slots, each with a row of dy, x and, if it is added to, dx. Threads read only what they
// copied.
//
// Every thread keeps the sums of dw and db of its columns in registers. A block leaves them in
// partials[block][kWeightSums][C].
template <RowNorm kNorm, typename T, int kElements>
__global__ void __launch_bounds__(kMaxThreads<kElements>, kBlocksTogether<kElements>)
    RowsKernel(Inputs<T> in, T* dx_MC, float* partials, int M, int C, int stages, bool add_to_dx) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(T)), kPieces = kElements / kPack;
  // With more columns a thread has no registers for its w, d and n: it reads and computes again.
  constexpr bool kKeepWeights = kElements <= 16, kKeepRow = kElements <= 16;
  constexpr bool kLayer = kNorm == RowNorm::kLayer;
  using Vec = Pack<T, kPack>;
  // Sums of the warps, by turns in two places: one barrier a row is enough.
  __shared__ float2 row_sums[2][kMostWarps];
  extern __shared__ uint4 ring[];

  const int group = threadIdx.y, pieces = C / kPack, lane = threadIdx.x % 32;
  const int warps = blockDim.x / 32, first_warp = group * warps;
  const int slot_pieces = (add_to_dx ? 3 : 2) * pieces;
  const int first_column = threadIdx.x * kPack, column_step = blockDim.x * kPack;
  Vec* const slots = reinterpret_cast<Vec*>(ring) + group * stages * slot_pieces + threadIdx.x;
  const auto has = [&](int k) { return static_cast<int>(threadIdx.x + k * blockDim.x) < pieces; };
  const auto load = [&](int m, int slot) {
    if (m < M) {
      Vec* to = slots + slot * slot_pieces;
      int64_t from = static_cast<int64_t>(m) * C + first_column;
#pragma unroll
      for (int k = 0; k < kPieces; ++k, to += blockDim.x, from += column_step) {
        if (!has(k)) continue;
        CopyAsync16(to, in.dy_MC + from);
        CopyAsync16(to + pieces, in.x_MC + from);
        if (add_to_dx) CopyAsync16(to + 2 * pieces, dx_MC + from);
      }
    }
    CommitCopies();  // of nothing, past the last row: groups are counted
  };
  const auto load_stats = [&](int m) {  // mean and rstd
    if (m >= M) return make_float2(0, 0);
    if constexpr (kLayer) {
      return reinterpret_cast<const float2*>(in.stats)[m];
    } else {
      return make_float2(0, in.stats[m]);
    }
  };

  float kept_w[kKeepWeights ? kPieces : 1][kPack];
  const auto load_weights = [&](int k, float(&w)[kPack]) {
    const Vec pack = LoadPack<T, kPack>(in.w_C + first_column + k * column_step);
#pragma unroll
    for (int e = 0; e < kPack; ++e) w[e] = ToFloat(pack.v[e]);
  };
  if constexpr (kKeepWeights) {
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      if (has(k)) load_weights(k, kept_w[k]);
    }
  }
  float dw[kPieces][kPack] = {}, db[kLayer ? kPieces : 1][kPack] = {};
  float kept_d[kKeepRow ? kPieces : 1][kPack], kept_n[kKeepRow ? kPieces : 1][kPack];

  const int step = gridDim.x * blockDim.y, first = blockIdx.x * blockDim.y + group;
  for (int s = 0; s < stages - 1; ++s) load(first + s * step, s);
  float2 stats = load_stats(first);
  int slot = 0, turn = 0;
  for (int base = blockIdx.x * blockDim.y; base < M; base += step) {
    const int m = base + group;
    if (m >= M) {
      // As many barriers as the other groups: racecheck counts them.
      if (warps > 1) SyncGroup(group, blockDim.x);
      break;
    }
    // Into the slot of the row before this one, or, with one slot, of this one.
    load(m + (stages - 1) * step, slot == 0 ? stages - 1 : slot - 1);
    const float2 next_stats = load_stats(m + step);
    WaitForCopies(stages - 1);
    const Vec* const row = slots + slot * slot_pieces;
    const float rstd = stats.y, shift = -stats.x * rstd;
    // Piece k of the row: dy, n and d.
    const auto read = [&](int k, float(&g)[kPack], float(&n)[kPack], float(&d)[kPack]) {
      const Vec dy = row[k * blockDim.x], x = row[k * blockDim.x + pieces];
      float read_w[kPack];
      if constexpr (!kKeepWeights) load_weights(k, read_w);
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        g[e] = ToFloat(dy.v[e]);
        n[e] = kLayer ? fmaf(ToFloat(x.v[e]), rstd, shift) : ToFloat(x.v[e]) * rstd;
        if constexpr (kKeepWeights) {
          d[e] = g[e] * kept_w[k][e];
        } else {
          d[e] = g[e] * read_w[e];
        }
      }
    };
    float sum_d = 0, sum_dn = 0;
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      if (!has(k)) continue;
      float g[kPack], n[kPack], d[kPack];
      read(k, g, n, d);
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        sum_dn = fmaf(d[e], n[e], sum_dn);
        dw[k][e] = fmaf(g[e], n[e], dw[k][e]);
        if constexpr (kLayer) {
          sum_d += d[e];
          db[k][e] += g[e];
        }
        if constexpr (kKeepRow) {
          kept_d[k][e] = d[e];
          kept_n[k][e] = n[e];
        }
      }
    }

    const float warp_sum = kLayer ? TwoWarpSums(sum_d, sum_dn) : WarpSum(sum_dn);
    float2 total;
    if (warps == 1) {
      total.x = kLayer ? __shfl_sync(0xffffffffu, warp_sum, 0) : 0;
      total.y = __shfl_sync(0xffffffffu, warp_sum, 16);
    } else {
      float2* const sums = row_sums[turn] + first_warp;
      if (lane % 16 == 0) {
        float2& own = sums[threadIdx.x / 32];
        (lane == 0 ? own.x : own.y) = kLayer || lane != 0 ? warp_sum : 0;
      }
      SyncGroup(group, blockDim.x);
      total = sums[0];
#pragma unroll 4
      for (int warp = 1; warp < warps; ++warp) {
        total.x += sums[warp].x;
        total.y += sums[warp].y;
      }
      turn ^= 1;
    }

    // dx = d * scale + n * slope + offset.
    const float scale = rstd, by_C = rstd / static_cast<float>(C);
    const float offset = -total.x * by_C, slope = -total.y * by_C;
    T* to = dx_MC + static_cast<int64_t>(m) * C + first_column;
#pragma unroll
    for (int k = 0; k < kPieces; ++k, to += column_step) {
      if (!has(k)) continue;
      float dx[kPack] = {};
      if (add_to_dx) {
        const Vec old = row[k * blockDim.x + 2 * pieces];
#pragma unroll
        for (int e = 0; e < kPack; ++e) dx[e] = ToFloat(old.v[e]);
      }
      float g[kPack], n[kPack], d[kPack];
      if constexpr (!kKeepRow) read(k, g, n, d);
      Vec pack;
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        const float from_d = kKeepRow ? kept_d[kKeepRow ? k : 0][e] : d[e];
        const float from_n = kKeepRow ? kept_n[kKeepRow ? k : 0][e] : n[e];
        dx[e] += fmaf(from_d, scale, fmaf(from_n, slope, offset));
        pack.v[e] = FromFloat<T>(dx[e]);
      }
      *reinterpret_cast<Vec*>(to) = pack;
    }
    stats = next_stats;
    slot = slot + 1 == stages ? 0 : slot + 1;
  }
  WaitForCopies(0);

  // The groups add up in group 0, one after the other, through the ring's memory.
  float* const group_sums = reinterpret_cast<float*>(ring);  // [kWeightSums][C], in another order
  for (int from = 1; from < static_cast<int>(blockDim.y); ++from) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      if (group != from || !has(k)) continue;
      const int piece = threadIdx.x + k * blockDim.x;
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        group_sums[e * pieces + piece] = dw[k][e];
        if constexpr (kLayer) group_sums[C + e * pieces + piece] = db[k][e];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      if (group != 0 || !has(k)) continue;
      const int piece = threadIdx.x + k * blockDim.x;
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        dw[k][e] += group_sums[e * pieces + piece];
        if constexpr (kLayer) db[k][e] += group_sums[C + e * pieces + piece];
      }
    }
  }
  if (group != 0) return;
  float* to = partials + static_cast<int64_t>(blockIdx.x) * kWeightSums<kNorm> * C + first_column;
#pragma unroll
  for (int k = 0; k < kPieces; ++k, to += column_step) {
    if (!has(k)) continue;
    Pack<float, kPack> sums;
#pragma unroll
    for (int e = 0; e < kPack; ++e) sums.v[e] = dw[k][e];
    *reinterpret_cast<Pack<float, kPack>*>(to) = sums;
    if constexpr (kLayer) {
#pragma unroll
      for (int e = 0; e < kPack; ++e) sums.v[e] = db[k][e];
      *reinterpret_cast<Pack<float, kPack>*>(to + C) = sums;
    }
  }
}

}  // namespace zeroplan::cuda::row_norm_backward
