// Routing of tokens to experts: the choice and its gradient, the order of rows, statistics and
// auxiliary losses. Legend: core/program/expert_kernel_rows.inc's.
#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/sigmoid.cuh"
#include "executor/kernels/cuda/experts/experts.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Larger for a larger logit, and of equal ones for the lower column; no two columns have the same.
// NaNs come last.
__device__ inline unsigned long long OrderKey(float logit, int column) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 as 0
  uint32_t sorted = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  if (isnan(logit)) sorted = 0;
  return static_cast<unsigned long long>(sorted) << 32 |
         (0xffffffffu - static_cast<uint32_t>(column));
}
__device__ inline int ColumnOf(unsigned long long key) {
  return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key));
}

__device__ inline unsigned long long WarpLargest(unsigned long long key) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    const unsigned long long other = __shfl_xor_sync(0xffffffffu, key, offset);
    key = other > key ? other : key;
  }
  return key;
}

// The largest logit of a row and the sum of the exponentials relative to it. A warp reads the row.
struct Exponentials {
  float largest, sum;
  __device__ float operator()(float logit) const { return expf(logit - largest) / sum; }
};
__device__ inline Exponentials SoftmaxOf(const float* row, int E, int lane) {
  float largest = -INFINITY;
  for (int e = lane; e < E; e += 32) largest = fmaxf(largest, row[e]);
  largest = WarpMax(largest);
  float sum = 0;
  for (int e = lane; e < E; e += 32) sum += expf(row[e] - largest);
  return {largest, WarpSum(sum)};
}

// A warp a token.
__global__ void __launch_bounds__(kThreads) ForwardKernel(RouteShape s, RouteForwardArrays a) {
  const int64_t m = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (m >= s.M) return;
  const float* row = a.logits_MN + m * (s.E + (s.shared ? 1 : 0));
  const Exponentials softmax = SoftmaxOf(row, s.E, lane);
  unsigned long long last = ~0ull;
  float sum = 0;
  for (int j = 0; j < s.k; ++j) {
    unsigned long long best = 0;
    for (int e = lane; e < s.E; e += 32) {
      const unsigned long long key = OrderKey(row[e], e);
      if (key < last && key > best) best = key;
    }
    last = WarpLargest(best);
    const int column = ColumnOf(last);
    const float gate = softmax(row[column]);
    sum += gate;
    if (lane == 0) {
      a.picks_Mk[m * s.k + j] = column;
      a.gates_Mk[m * s.k + j] = gate;
    }
  }
  if (s.normalized && lane == 0) {
    for (int j = 0; j < s.k; ++j) a.gates_Mk[m * s.k + j] /= sum;
  }
  if (s.shared && lane == 0) a.shared_M[m] = Sigmoid<true>(row[s.E]);
}

// A warp a token. With g the gradient of the softmax's values p: dlogit = p * (g - sum of g * p).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(RouteShape s, RouteBackwardArrays a, T* dlogits_MN) {
  const int64_t m = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32, N = s.E + (s.shared ? 1 : 0);
  if (m >= s.M) return;
  const float* row = a.logits_MN + m * N;
  const int32_t* picks = a.picks_Mk + m * s.k;
  const float* dgates = a.dgates_Mk + m * s.k;
  const Exponentials softmax = SoftmaxOf(row, s.E, lane);
  float sum = 1, mean = 0;  // for normalized gates: their divisor, and the gates' mean of dgates
  if (s.normalized) {
    sum = 0;
    for (int j = 0; j < s.k; ++j) sum += softmax(row[picks[j]]);
    for (int j = 0; j < s.k; ++j) mean += dgates[j] * softmax(row[picks[j]]) / sum;
  }
  const auto gradient = [&](int e) {
    float g = a.balance_E1 != nullptr ? a.balance_E1[e] : 0.0f;
    for (int j = 0; j < s.k; ++j) {
      if (picks[j] == e) g += (dgates[j] - mean) / sum;
    }
    return g;
  };
  float dot = 0;
  for (int e = lane; e < s.E; e += 32) dot += gradient(e) * softmax(row[e]);
  dot = WarpSum(dot);
  float of_lse = 0;
  if (a.balance_E1 != nullptr) of_lse = a.balance_E1[s.E] * (softmax.largest + logf(softmax.sum));
  for (int e = lane; e < s.E; e += 32) {
    dlogits_MN[m * N + e] = FromFloat<T>(softmax(row[e]) * (gradient(e) - dot + of_lse));
  }
  if (s.shared && lane == 0) {
    const float gate = Sigmoid<true>(row[s.E]);
    dlogits_MN[m * N + s.E] = FromFloat<T>(a.dshared_M[m] * gate * (1.0f - gate));
  }
}

// ---- order ----

// counts[block][E]: rows of each expert among those of the block.
__global__ void __launch_bounds__(kThreads)
    CountKernel(const int32_t* picks_R, int32_t* counts, int64_t R, int E) {
  extern __shared__ int32_t of_block[];
  for (int e = threadIdx.x; e < E; e += kThreads) of_block[e] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * kOrderBlockRows;
  for (int i = threadIdx.x; i < kOrderBlockRows && begin + i < R; i += kThreads) {
    atomicAdd(&of_block[picks_R[begin + i]], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < E; e += kThreads) {
    counts[static_cast<int64_t>(blockIdx.x) * E + e] = of_block[e];
  }
}

// counts become each block's first place of each expert. One block.
__global__ void __launch_bounds__(kThreads)
    StartsKernel(int32_t* counts, int32_t* starts_E1, int64_t blocks, int E) {
  extern __shared__ int32_t sums[];
  for (int e = threadIdx.x; e < E; e += kThreads) {
    int32_t sum = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      const int32_t count = counts[b * E + e];
      counts[b * E + e] = sum;
      sum += count;
    }
    sums[e] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t start = 0;
    for (int e = 0; e < E; ++e) {
      const int32_t count = sums[e];
      sums[e] = start;
      starts_E1[e] = start;
      start += count;
    }
    starts_E1[E] = start;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < E; e += kThreads) {
    for (int64_t b = 0; b < blocks; ++b) counts[b * E + e] += sums[e];
  }
}

// Places in the order of the rows' numbers: one warp of the block after the other.
__global__ void __launch_bounds__(kOrderBlockRows)
    PlaceKernel(const int32_t* picks_R, const int32_t* counts, int32_t* order_R, int32_t* places_R,
                int64_t R, int E) {
  extern __shared__ int32_t next[];
  for (int e = threadIdx.x; e < E; e += kOrderBlockRows) {
    next[e] = counts[static_cast<int64_t>(blockIdx.x) * E + e];
  }
  const int64_t r = blockIdx.x * kOrderBlockRows + threadIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pick = r < R ? picks_R[r] : -1;
  const unsigned same = __match_any_sync(0xffffffffu, pick);
  const int before = __popc(same & ((1u << lane) - 1));
  int32_t place = 0;
  for (int turn = 0; turn < kOrderBlockRows / 32; ++turn) {
    __syncthreads();
    if (turn != warp) continue;  // all of the warp
    if (pick >= 0) place = next[pick] + before;
    __syncwarp();
    if (pick >= 0 && before == 0) next[pick] += __popc(same);
  }
  if (r >= R) return;
  places_R[r] = place;
  order_R[place] = static_cast<int32_t>(r);
}

// ---- statistics and losses ----

// partials[block][E + 1]: sums of the softmax, and of the squared logsumexp, over the block's
// tokens. A warp takes every blockDim.x / 32-th of them and has sums of its own.
__global__ void __launch_bounds__(kThreads)
    StatsKernel(const float* logits_MN, float* partials, int64_t M, int E, int N,
                int64_t block_tokens) {
  extern __shared__ float of_warp[];
  const int warps = static_cast<int>(blockDim.x) / 32, warp = threadIdx.x / 32,
            lane = threadIdx.x % 32;
  float* sums = of_warp + warp * (E + 1);
  for (int e = lane; e <= E; e += 32) sums[e] = 0;
  __syncwarp();
  const int64_t begin = blockIdx.x * block_tokens;
  const int64_t end = begin + block_tokens < M ? begin + block_tokens : M;
  for (int64_t m = begin + warp; m < end; m += warps) {
    const float* row = logits_MN + m * N;
    const Exponentials softmax = SoftmaxOf(row, E, lane);
    for (int e = lane; e < E; e += 32) sums[e] += softmax(row[e]);
    if (lane == 0) {
      const float lse = softmax.largest + logf(softmax.sum);
      sums[E] += lse * lse;
    }
    __syncwarp();
  }
  __syncthreads();
  for (int e = threadIdx.x; e <= E; e += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += of_warp[w * (E + 1) + e];
    partials[static_cast<int64_t>(blockIdx.x) * (E + 1) + e] = sum;
  }
}

__global__ void __launch_bounds__(kThreads)
    AddStatsKernel(const float* partials, const int32_t* starts_E1, float* stats, int64_t blocks,
                   int E) {
  const int e = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (e > E) return;
  double sum = 0;
  for (int64_t b = 0; b < blocks; ++b) sum += static_cast<double>(partials[b * (E + 1) + e]);
  stats[E + e] = static_cast<float>(sum);
  if (e < E) stats[e] = static_cast<float>(starts_E1[e + 1] - starts_E1[e]);
}

// One block.
__global__ void __launch_bounds__(kThreads)
    BalanceKernel(BalanceArrays a, int64_t M, int E, int L, float aux, float z, bool add) {
  __shared__ double shared[kWarps];
  double count = 0;
  for (int64_t m = threadIdx.x; m < M; m += kThreads) count += a.targets_M[m] >= 0 ? 1 : 0;
  const double counted = BlockSum<kThreads>(count, shared);
  const double tokens = static_cast<double>(L) * static_cast<double>(M);
  const double experts = E, weight = counted * static_cast<double>(a.state->grad_scale);
  const int sums = 2 * E + 1;
  double of_thread = 0;
  for (int e = threadIdx.x; e < E; e += kThreads) {
    double rows = 0, softmax = 0;
    for (int l = 0; l < L; ++l) {
      const float* of_layer = a.stats + static_cast<int64_t>(l) * sums;
      rows += static_cast<double>(of_layer[e]);
      softmax += static_cast<double>(of_layer[E + e]);
    }
    of_thread += experts * rows * softmax / (tokens * tokens);
    a.balance_E1[e] =
        static_cast<float>(weight * static_cast<double>(aux) * experts * rows / (tokens * tokens));
  }
  __syncthreads();
  const double loss = BlockSum<kThreads>(of_thread, shared);
  const auto put = [&](int64_t at, double value) {
    a.totals[at] = add ? a.totals[at] + value : value;
  };
  for (int i = threadIdx.x; i < L * E; i += kThreads) {
    put(3 + i, static_cast<double>(a.stats[static_cast<int64_t>(i / E) * sums + i % E]));
  }
  if (threadIdx.x != 0) return;
  double squares = 0;
  for (int l = 0; l < L; ++l) {
    squares += static_cast<double>(a.stats[static_cast<int64_t>(l) * sums + 2 * E]);
  }
  a.balance_E1[E] = static_cast<float>(weight * static_cast<double>(z) * 2 / tokens);
  put(0, counted * loss);
  put(1, counted * squares / tokens);
  put(2, counted);
}

}  // namespace

void LaunchRouteForward(const RouteShape& shape, const RouteForwardArrays& arrays,
                        cudaStream_t stream) {
  if (shape.M == 0) return;
  ForwardKernel<<<GridOf(shape.M, kWarps), kThreads, 0, stream>>>(shape, arrays);
}

void LaunchRouteBackward(const RouteShape& shape, const RouteBackwardArrays& arrays,
                         cudaStream_t stream) {
  if (shape.M == 0) return;
  WithFloatType(arrays.dlogits_MN.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    BackwardKernel<T><<<GridOf(shape.M, kWarps), kThreads, 0, stream>>>(
        shape, arrays, static_cast<T*>(arrays.dlogits_MN.data));
  });
}

void LaunchOrderRows(const OrderArrays& a, int64_t R, int E, cudaStream_t stream) {
  const int64_t blocks = OrderBlocks(R);
  const size_t shared = static_cast<size_t>(E) * sizeof(int32_t);
  CountKernel<<<GridOf(blocks, 1), kThreads, shared, stream>>>(a.picks_R, a.counts, R, E);
  StartsKernel<<<1, kThreads, shared, stream>>>(a.counts, a.starts_E1, blocks, E);
  PlaceKernel<<<GridOf(blocks, 1), kOrderBlockRows, shared, stream>>>(a.picks_R, a.counts,
                                                                      a.order_R, a.places_R, R, E);
}

void LaunchRouterStats(const float* logits_MN, const int32_t* starts_E1, float* stats,
                       float* partials, int64_t M, int E, bool shared, cudaStream_t stream) {
  constexpr int64_t kSharedFloats = 48 * 1024 / sizeof(float);
  const int64_t fit = kSharedFloats / (E + 1), blocks = RouterStatsBlocks(M);
  const int warps = static_cast<int>(fit < 1 ? 1 : fit < kWarps ? fit : kWarps);
  StatsKernel<<<GridOf(blocks, 1), static_cast<unsigned>(32 * warps),
                static_cast<size_t>(warps) * static_cast<size_t>(E + 1) * sizeof(float), stream>>>(
      logits_MN, partials, M, E, E + (shared ? 1 : 0), CeilDiv64(M, blocks));
  AddStatsKernel<<<GridOf(E + 1, kThreads), kThreads, 0, stream>>>(partials, starts_E1, stats,
                                                                   blocks, E);
}

void LaunchBalanceLoss(const BalanceArrays& arrays, int64_t M, int E, int L, float aux, float z,
                       bool add, cudaStream_t stream) {
  BalanceKernel<<<1, kThreads, 0, stream>>>(arrays, M, E, L, aux, z, add);
}

}  // namespace zeroplan::cuda
