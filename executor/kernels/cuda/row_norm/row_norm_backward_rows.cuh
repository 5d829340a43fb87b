// The norms' backward kernel for C in multiples of 16 bytes and one dtype. Legend: M rows, C
// channels.
//
// With n = (x - mean) * rstd and d = dy * w: dx = (d - mean(d) - n * mean(d * n)) * rstd,
// dw = sum_M dy * n, db = sum_M dy. RMS norm has neither the mean of x, nor that of d, nor b.
#pragma once

#include "executor/kernels/cuda/async_copy.cuh"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/magnitude.cuh"
#include "executor/kernels/cuda/row_norm/row_norm.h"

namespace zeroplan::cuda::row_norm_backward {

// Threads of a block, by elements a thread: the registers of two blocks or of one. RMS norm has no
// sums of db to keep.
template <RowNorm kNorm, typename T, int kElements>
constexpr int kMaxThreads = kElements > 8 || (kNorm == RowNorm::kRms && sizeof(T) == 2) ? 512 : 448;
template <int kElements>
constexpr int kBlocksTogether = kElements == 8 ? 2 : 1;  // on a multiprocessor
// The most columns that a block takes with kElements elements a thread.
template <int kElements>
constexpr int64_t kMostColumns = kElements * (kElements == 8 ? 448 : 512);
// Rows of a group at a time: they share a barrier, and what a thread does once a turn.
template <RowNorm kNorm, typename T, int kElements>
constexpr int kRowsTogether = sizeof(T) > 2 || kElements > 8 ? 1
                              : kNorm == RowNorm::kRms       ? 4
                                                             : 2;
constexpr int kMostSums = 4;  // of a turn's rows together
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

// Sums of each of v over the warp: lane i gets that of v[i / (32 / N)]. N: a power of 2.
template <int N>
__device__ inline float WarpSums(float (&v)[N]) {
  int offset = 16;
#pragma unroll
  for (int n = N; n > 1; n /= 2, offset /= 2) {
    const bool upper = (threadIdx.x & offset) != 0;
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      const float give = upper ? v[i] : v[i + n / 2], keep = upper ? v[i + n / 2] : v[i];
      v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
    }
  }
#pragma unroll
  for (; offset > 0; offset /= 2) v[0] += __shfl_xor_sync(0xffffffffu, v[0], offset);
  return v[0];
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

// A group of blockDim.x threads (whole warps) works on kRows rows at a time, kElements elements of
// each a thread, in pieces of 16 bytes; the blockDim.y groups of a block take rows of their own and
// do not wait for one another. While some rows are summed the next ones are on their way into the
// group's ring of `stages` slots, each with kRows rows of dy, x and, if it is added to, dx. Threads
// read only what they copied.
//
// Every thread keeps the sums of dw and db of its columns in registers. A block leaves them in
// partials[block][kWeightSums][C]. With kTakesLargest amax becomes the largest magnitude in dx.
template <RowNorm kNorm, typename T, int kElements, int kRows, bool kTakesLargest>
__global__ void __launch_bounds__(kMaxThreads<kNorm, T, kElements>, kBlocksTogether<kElements>)
    RowsKernel(Inputs<T> in, T* dx_MC, float* partials, float* amax, int M, int C, int stages,
               bool add_to_dx) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(T)), kPieces = kElements / kPack;
  // A thread has no registers for its w with more columns: it reads it again.
  constexpr bool kKeepWeights = kElements <= 16;
  constexpr bool kLayer = kNorm == RowNorm::kLayer;
  constexpr int kSums = kLayer ? 2 * kRows : kRows, kSumLanes = 32 / kSums;
  static_assert(kSums <= kMostSums);
  static_assert(kSums <= kMostSums);
  using Vec = Pack<T, kPack>;
  // Sums of the warps, by turns in two places: one barrier a turn is enough.
  __shared__ Pack<float, kSums> row_sums[2][kMostWarps];
  extern __shared__ uint4 ring[];

  const int group = threadIdx.y, pieces = C / kPack, lane = threadIdx.x % 32;
  const int warps = blockDim.x / 32, first_warp = group * warps;
  const int row_pieces = (add_to_dx ? 3 : 2) * pieces, slot_pieces = kRows * row_pieces;
  const int first_column = threadIdx.x * kPack, column_step = blockDim.x * kPack;
  Vec* const slots = reinterpret_cast<Vec*>(ring) + group * stages * slot_pieces + threadIdx.x;
  const auto has = [&](int k) { return static_cast<int>(threadIdx.x + k * blockDim.x) < pieces; };

  // This group's rows: kRows from `begin`, from begin + step, ... up to `end`. Several are cut from
  // a part of the rows that is the group's alone, so that all groups have as many; single ones are
  // taken in turns.
  const int groups = gridDim.x * blockDim.y, index = blockIdx.x * blockDim.y + group;
  const int whole = M / groups, rest = M % groups;
  const bool parts = kRows > 1;
  const int begin = parts ? index * whole + (index < rest ? index : rest) : index;
  const int end = parts ? begin + whole + (index < rest ? 1 : 0) : M;
  const int step = parts ? kRows : groups;
  const int turns = (whole + (rest > 0 ? 1 : 0) + kRows - 1) / kRows;

  const auto load = [&](int m, int slot) {
    Vec* to = slots + slot * slot_pieces;
    const int64_t at = static_cast<int64_t>(m) * C + first_column;
    const T *dy = in.dy_MC + at, *x = in.x_MC + at, *dx = dx_MC + at;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (m + r < end) {
#pragma unroll
        for (int k = 0; k < kPieces; ++k) {
          if (!has(k)) continue;
          Vec* const piece = to + k * blockDim.x;
          CopyAsync16(piece, dy + k * column_step);
          CopyAsync16(piece + pieces, x + k * column_step);
          if (add_to_dx) CopyAsync16(piece + 2 * pieces, dx + k * column_step);
        }
      }
      to += row_pieces;
      dy += C;
      x += C;
      dx += C;
    }
    CommitCopies();  // of nothing, past the last row: groups are counted
  };
  const auto load_stats = [&](int m, float2(&stats)[kRows]) {  // mean and rstd
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      stats[r] = make_float2(0, 0);
      if (m + r >= end) continue;
      if constexpr (kLayer) {
        stats[r] = reinterpret_cast<const float2*>(in.stats)[m + r];
      } else {
        stats[r].y = in.stats[m + r];
      }
    }
  };

  float kept_w[kKeepWeights ? kPieces : 1][kPack];
  const auto load_weights = [&](int k, float(&w)[kPack]) {
    Widen(LoadPack<T, kPack>(in.w_C + first_column + k * column_step), w);
  };
  if constexpr (kKeepWeights) {
#pragma unroll
    for (int k = 0; k < kPieces; ++k) {
      if (has(k)) load_weights(k, kept_w[k]);
    }
  }
  float dw[kPieces][kPack] = {}, db[kLayer ? kPieces : 1][kPack] = {};
  uint32_t largest = 0;

  for (int s = 0; s < stages - 1; ++s) load(begin + s * step, s);
  float2 stats[kRows];
  load_stats(begin, stats);
  int slot = 0, turn = 0;
  for (int i = 0; i < turns; ++i) {
    const int m = begin + i * step;
    if (m >= end) {
      // The same number of barriers as in the other groups: racecheck counts them.
      if (warps > 1) SyncGroup(group, blockDim.x);
      break;
    }
    // Into the slot of the rows before these, or, with one slot, of these.
    load(m + (stages - 1) * step, slot == 0 ? stages - 1 : slot - 1);
    float2 next_stats[kRows];
    load_stats(m + step, next_stats);
    WaitForCopies(stages - 1);
    const Vec* const rows = slots + slot * slot_pieces;
    float sums[kSums] = {};  // by row: of d * n, and of d
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (m + r >= end) continue;
      const float rstd = stats[r].y, shift = -stats[r].x * rstd;
      float sum_d = 0, sum_dn = 0;
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        if (!has(k)) continue;
        const Vec* const piece = rows + r * row_pieces + k * blockDim.x;
        float g[kPack], x[kPack], w[kPack];
        Widen(piece[0], g);
        Widen(piece[pieces], x);
        if constexpr (!kKeepWeights) load_weights(k, w);
#pragma unroll
        for (int e = 0; e < kPack; ++e) {
          const float n = kLayer ? fmaf(x[e], rstd, shift) : x[e] * rstd, gn = g[e] * n;
          const float weight = kKeepWeights ? kept_w[kKeepWeights ? k : 0][e] : w[e];
          dw[k][e] += gn;
          sum_dn = fmaf(gn, weight, sum_dn);
          if constexpr (kLayer) {
            sum_d = fmaf(g[e], weight, sum_d);
            db[k][e] += g[e];
          }
        }
      }
      sums[r] = sum_dn;
      if constexpr (kLayer) sums[kRows + r] = sum_d;
    }

    const float warp_sum = WarpSums(sums);
    Pack<float, kSums> total;
    if (warps == 1) {
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        total.v[s] = __shfl_sync(0xffffffffu, warp_sum, s * kSumLanes);
      }
    } else {
      Pack<float, kSums>* const of_warps = row_sums[turn] + first_warp;
      if (lane % kSumLanes == 0) of_warps[threadIdx.x / 32].v[lane / kSumLanes] = warp_sum;
      SyncGroup(group, blockDim.x);
      total = of_warps[0];
#pragma unroll 4
      for (int warp = 1; warp < warps; ++warp) {
        const Pack<float, kSums> more = of_warps[warp];
#pragma unroll
        for (int s = 0; s < kSums; ++s) total.v[s] += more.v[s];
      }
      turn ^= 1;
    }

    T* to = dx_MC + static_cast<int64_t>(m) * C + first_column;
#pragma unroll
    for (int r = 0; r < kRows; ++r, to += C) {
      if (m + r >= end) continue;
      // dx = d * rstd + n * slope + offset, with n = x * rstd + shift.
      const float rstd = stats[r].y, by_C = rstd / static_cast<float>(C);
      const float slope = -total.v[r] * by_C, x_slope = slope * rstd;
      const float offset =
          kLayer ? fmaf(-stats[r].x * rstd, slope, -total.v[kLayer ? kRows + r : 0] * by_C) : 0;
#pragma unroll
      for (int k = 0; k < kPieces; ++k) {
        if (!has(k)) continue;
        const Vec* const piece = rows + r * row_pieces + k * blockDim.x;
        float g[kPack], x[kPack], w[kPack], dx[kPack];
        Widen(piece[0], g);
        Widen(piece[pieces], x);
        if constexpr (!kKeepWeights) load_weights(k, w);
        if (add_to_dx) {
          Widen(piece[2 * pieces], dx);
        } else {
#pragma unroll
          for (int e = 0; e < kPack; ++e) dx[e] = 0;
        }
#pragma unroll
        for (int e = 0; e < kPack; ++e) {
          const float weight = kKeepWeights ? kept_w[kKeepWeights ? k : 0][e] : w[e];
          const float from_x = kLayer ? fmaf(x[e], x_slope, offset) : x[e] * x_slope;
          dx[e] += fmaf(g[e] * weight, rstd, from_x);
        }
        const Vec rounded = Narrow<T>(dx);
        *reinterpret_cast<Vec*>(to + k * column_step) = rounded;
        if constexpr (kTakesLargest) largest = Larger(largest, LargestOf(rounded));
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) stats[r] = next_stats[r];
    slot = slot + 1 == stages ? 0 : slot + 1;
  }
  WaitForCopies(0);
  if constexpr (kTakesLargest) RaiseByWarp(largest, amax);

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
