#pragma once

#include <cfloat>

#include "core/program/step_state.h"
#include "executor/kernels/cuda/async_copy.cuh"
#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda::cross_entropy {

// What the kernels of cross-entropy share: maximum and sum of exp(x - maximum), in parts.

constexpr float kLog2E = 1.4426950408889634f;

// 2^x; 0 below 2^-126, which saves the instructions for such numbers.
__device__ inline float PowerOfTwo(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// e^x, otherwise as __expf.
__device__ inline float FastExp(float x) { return PowerOfTwo(x * kLog2E); }

// Maximum and sum of what was seen. The maximum starts at the lowest finite number: from -infinity
// a difference of two of them would be NaN.
struct Softmax {
  float max = -FLT_MAX, sum = 0;
};

// The warp's Softmax; every lane gets the same.
__device__ inline Softmax WarpSoftmax(const Softmax& own) {
  const float max = WarpMax(own.max);
  return {max, WarpSum(own.sum * FastExp(own.max - max))};
}

template <int W>
__device__ inline float SumOf(const float (&x)[W]) {
  static_assert(W == 4 || W == 8);
  if constexpr (W == 4) {
    return (x[0] + x[1]) + (x[2] + x[3]);
  } else {
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  }
}

// The largest of what was added, at least the lowest finite number; 16-bit ones two at a time.
template <typename T>
struct RunningMax {
  float max = -FLT_MAX;
  template <int W>
  __device__ void Add(const Pack<T, W>& pack) {
#pragma unroll
    for (int e = 0; e < W; ++e) max = fmaxf(max, ToFloat(pack.v[e]));
  }
  template <int W>
  __device__ void AddSome(const Pack<T, W>& pack, int count) {
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (e < count) max = fmaxf(max, ToFloat(pack.v[e]));
    }
  }
  __device__ float Value() const { return max; }
};

template <typename Two, typename T>
struct RunningMaxOfTwos {
  Two two;
  float some = -FLT_MAX;

  __device__ explicit RunningMaxOfTwos(T lowest) : two{lowest, lowest} {}
  template <int W>
  __device__ void Add(const Pack<T, W>& pack) {
    const auto* twos = reinterpret_cast<const Two*>(&pack);
#pragma unroll
    for (int i = 0; i < W / 2; ++i) two = __hmax2(two, twos[i]);
  }
  template <int W>
  __device__ void AddSome(const Pack<T, W>& pack, int count) {
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (e < count) some = fmaxf(some, ToFloat(pack.v[e]));
    }
  }
  __device__ float Value() const {
    return fmaxf(some, fmaxf(ToFloat(T(two.x)), ToFloat(T(two.y))));
  }
};
template <>
struct RunningMax<Bf16> : RunningMaxOfTwos<__nv_bfloat162, Bf16> {
  __device__ RunningMax() : RunningMaxOfTwos(__ushort_as_bfloat16(0xff7f)) {}
};
template <>
struct RunningMax<Half> : RunningMaxOfTwos<__half2, Half> {
  __device__ RunningMax() : RunningMaxOfTwos(__ushort_as_half(0xfbff)) {}
};

// Cross-entropy of rows that are read once: compute capability 9.0 or later, one dtype, rows of
// whole 16-byte pieces. Legend: R rows, V vocabulary, Vp padded vocabulary.
//
// A cluster of kCluster blocks works on one row after the other. A row lies in the blocks' shared
// memory while its softmax is found and its gradient written; part of the next one is on its way
// into what is left of that memory. The blocks tell one another their sums.
//
// Exponentials are 2^(x * log2(e) - n), in one multiply-add, with n an integer near the maximum
// times log2(e): no more rounded than exp(x - maximum). Where that overflows, at logits past
// 2.3e38, the loss is not finite.

// Threads of a multiprocessor, in one block or two.
constexpr int kRingThreads = 1024;
// Pieces of the next row that find room beside the whole of one.
constexpr int kAhead = 4;

// A barrier of all threads of the cluster: what was written before it, into any block's shared
// memory, is seen after it.
template <int kCluster>
__device__ inline void SyncCluster() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kCluster > 1) {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    return;
  }
#endif
  __syncthreads();
}

// *own = value in block `rank` of the cluster, `own` being an address in this block.
__device__ inline void StoreInBlock(float2* own, int rank, float2 value) {
#if __CUDA_ARCH__ >= 900
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(value.x), "f"(value.y)
               : "memory");
#endif
}

// sum times 2^exponent, a whole number.
struct Scaled {
  float exponent = -FLT_MAX, sum = 0;
};
__device__ inline Scaled WarpScaled(const Scaled& own) {
  const float exponent = WarpMax(own.exponent);
  return {exponent, WarpSum(own.sum * PowerOfTwo(own.exponent - exponent))};
}

// A row has `pieces` >= kAhead rounds of 16 bytes for each thread of a cluster; the ring has a slot
// for each of them and kAhead more. Each thread reads only what it copied. state != nullptr.
template <typename T, int kCluster, int kThreads>
__global__ void __launch_bounds__(kThreads, kRingThreads / kThreads)
    RingKernel(T* logits_RVp, const int32_t* targets_R, const StepState* state, float* loss_R,
               int R, int V, int Vp, int pieces) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(T)), kWarps = kThreads / 32;
  constexpr int kStep = kCluster * kThreads * kPack;  // columns from one piece to the next
  constexpr int kParts = kCluster * kWarps;
  using Vec = Pack<T, kPack>;
  __shared__ float2 sums[2][kParts];  // exponent and sum of each warp, by turns
  extern __shared__ uint4 ring[];

  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const int cluster = static_cast<int>(blockIdx.x) / kCluster;
  const int clusters = static_cast<int>(gridDim.x) / kCluster;
  const int thread = threadIdx.x, lane = threadIdx.x % 32;
  const int first_column = (rank * kThreads + thread) * kPack;
  Vec* const own = reinterpret_cast<Vec*>(ring) + thread;
  Vec* const own_end = own + (pieces + kAhead) * kThreads;
  const auto after = [&](Vec* slot) {
    slot += kThreads;
    return slot == own_end ? own : slot;
  };
  // The first `own_pieces` of this thread's pieces are of the row, the first `whole` of the
  // vocabulary; of the next one its first edge_count elements are.
  const auto pieces_below = [&](int columns) {
    return columns < first_column + kPack ? 0 : (columns - kPack - first_column) / kStep + 1;
  };
  const int own_pieces = pieces_below(Vp), whole = pieces_below(V);
  const int edge_count = V - (first_column + whole * kStep);  // <= 0: none

  const int64_t cluster_step = static_cast<int64_t>(clusters) * Vp;
  T* row = logits_RVp + static_cast<int64_t>(cluster) * Vp + first_column;
  const auto copy = [&](Vec* slot, const T* of_row, int piece, int limit) {
    if (piece < limit) CopyAsync16(slot, of_row + piece * kStep);
    CommitCopies();  // of nothing, past the end: groups are counted
  };
  // Nothing is read of rows past the end, and of those that are left out.
  const auto target_of = [&](int r) { return r < R ? targets_R[r] : -1; };
  const auto pieces_for = [&](int target) { return target < 0 ? 0 : own_pieces; };
  int target = target_of(cluster), next_target = target_of(cluster + clusters);
  {
    Vec* slot = own;
    for (int k = 0; k < pieces; ++k, slot += kThreads) copy(slot, row, k, pieces_for(target));
    for (int k = 0; k < kAhead; ++k, slot += kThreads) {
      copy(slot, row + cluster_step, k, pieces_for(next_target));
    }
  }

  const float grad_scale = state->grad_scale;
  SyncCluster<kCluster>();  // all blocks run: their memory may be written
  Vec* slot = own;          // of this row's first piece
  int turn = 0;
  for (int r = cluster; r < R; r += clusters, row += cluster_step) {
    if (target >= V) FailIndex("target", target, r, V);
    const int third_target = target_of(r + 2 * clusters);
    WaitForCopiesBut<kAhead>();

    Scaled all{0, 0};
    const int from_first = target - first_column;
    const bool has_target = from_first >= 0 && from_first % kStep < kPack;
    float target_logit = 0;
    if (target >= 0) {
      Vec* at = slot;
      RunningMax<T> most;
#pragma unroll 4
      for (int k = 0; k < whole; ++k, at = after(at)) most.Add(*at);
      if (edge_count > 0) most.AddSome(*at, edge_count);
      Scaled mine{fminf(fmaxf(rintf(most.Value() * kLog2E), -FLT_MAX), FLT_MAX), 0};
      at = slot;
#pragma unroll 2
      for (int k = 0; k < whole; ++k, at = after(at)) {
        float x[kPack];
        Widen(*at, x);
#pragma unroll
        for (int e = 0; e < kPack; ++e) x[e] = PowerOfTwo(fmaf(x[e], kLog2E, -mine.exponent));
        mine.sum += SumOf(x);
      }
      if (edge_count > 0) {
        float x[kPack];
        Widen(*at, x);
#pragma unroll
        for (int e = 0; e < kPack; ++e) {
          if (e < edge_count) mine.sum += PowerOfTwo(fmaf(x[e], kLog2E, -mine.exponent));
        }
      }
      if (has_target) {
        Vec* of_target = slot + from_first / kStep * kThreads;
        if (of_target >= own_end) of_target -= own_end - own;
        target_logit = ToFloat(reinterpret_cast<const T*>(of_target)[from_first % kStep]);
      }

      // Each warp's lane i tells block i; then all warps add up all there is, in the same order.
      const Scaled of_warp = WarpScaled(mine);
      float2* const place = &sums[turn][rank * kWarps + thread / 32];
      const float2 told = make_float2(of_warp.exponent, of_warp.sum);
      if constexpr (kCluster == 1) {
        if (lane == 0) *place = told;
      } else {
        if (lane < kCluster) StoreInBlock(place, lane, told);
      }
      SyncCluster<kCluster>();
      float2 parts[(kParts + 31) / 32];
#pragma unroll
      for (int i = 0; i < (kParts + 31) / 32; ++i) {
        parts[i] = i * 32 + lane < kParts ? sums[turn][i * 32 + lane] : make_float2(-FLT_MAX, 0);
      }
      all.exponent = parts[0].x;
#pragma unroll
      for (int i = 1; i < (kParts + 31) / 32; ++i) all.exponent = fmaxf(all.exponent, parts[i].x);
#pragma unroll
      for (int i = 0; i < (kParts + 31) / 32; ++i) {
        all.sum += parts[i].y * PowerOfTwo(parts[i].x - all.exponent);
      }
      all = WarpScaled(all);
      turn ^= 1;
    }

    // The gradient; as soon as a piece is done its slot is given to the row after the next pieces.
    const float inverse = target < 0 ? 0.0f : 1.0f / all.sum, factor = inverse * grad_scale;
    const auto write = [&](int k) {
      if (k >= own_pieces) return;
      float x[kPack];
      Widen(*slot, x);
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        x[e] = PowerOfTwo(fmaf(x[e], kLog2E, -all.exponent)) * factor;
      }
      if (k >= whole || target < 0) {
        const int count = k > whole || target < 0 ? 0 : edge_count;
#pragma unroll
        for (int e = 0; e < kPack; ++e) x[e] = e < count ? x[e] : 0.0f;
      }
      *reinterpret_cast<Vec*>(row + k * kStep) = Narrow<T>(x);
    };
    const int limit1 = pieces_for(next_target), limit2 = pieces_for(third_target);
    const T* const next = row + cluster_step;
#pragma unroll 2
    for (int k = 0; k < pieces - kAhead; ++k, slot = after(slot)) {
      write(k);
      copy(slot, next, k + kAhead, limit1);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k, slot = after(slot)) {
      write(pieces - kAhead + k);
      copy(slot, next + cluster_step, k, limit2);
    }

    // Written after the rest of its piece, which this thread wrote.
    if (target >= 0 && has_target) {
      const float p = PowerOfTwo(fmaf(target_logit, kLog2E, -all.exponent)) * inverse;
      row[from_first] = FromFloat<T>((p - 1.0f) * grad_scale);
      loss_R[r] = static_cast<float>(static_cast<double>(logf(all.sum)) +
                                     static_cast<double>(all.exponent) * 0.69314718055994530942 -
                                     static_cast<double>(target_logit));
    }
    if (target < 0 && rank == 0 && thread == 0) loss_R[r] = 0;
    target = next_target;
    next_target = third_target;
  }
  WaitForCopiesBut<0>();
}

}  // namespace zeroplan::cuda::cross_entropy
