// A token's attention over the cache. The kept tokens are cut into parts, each for a block, and
// what the blocks leave is put together by a second kernel (flash decoding: T. Dao et al.,
// "Flash-Decoding for long-context inference", 2023; the running maximum and sum are online
// softmax, Milakov and Gimelshein, arXiv 1805.02867). Query heads that share keys are worked on
// together, so that the cache is read once.
//
// Legend: kernel_rows.inc's; R = H/G query heads share keys.
#include <cmath>

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/token/position.cuh"
#include "executor/kernels/cuda/token/token.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 128;
// Lanes that take a key together, each some vectors of it; teams take kKeys keys at a time.
constexpr int kTeam = 8;
constexpr int kTeams = kThreads / kTeam;
template <typename T>
constexpr int kKeys = sizeof(T) == 2 ? 4 : 2;
constexpr int kMostHeadSize = 4 * kTeam * kVector;
// Accumulators of a thread: heads times vectors of a head.
constexpr int kMostSums = 8;
constexpr float kLog2E = 1.4426950408889634f;

// exp2(x - max), and 0 where both are minus infinity: nothing has been seen.
__device__ inline float Weight(float x, float max) {
  return x == -INFINITY ? 0.0f : exp2f(x - max);
}

// Leaves of each head of the part the sum of values, weighted by exp2(score - maximum), the maximum
// and the sum of weights: partials[head][part][D + 2]. Scores are in units of log 2.
template <typename T, int kPacks, int kHeads>
__global__ void __launch_bounds__(kThreads)
    PartKernel(CacheShape s, const T* qkv_1N, const StepState* state, T* cache_T2GD,
               float* partials) {
  // q [kHeads][D], then a head's sums of the teams [kTeams][D].
  extern __shared__ __align__(16) float dynamic[];
  __shared__ float maxima[kHeads][kTeams], totals[kHeads][kTeams];
  const int part = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
  const auto D = static_cast<int>(s.D), packs = D / kVector;
  const int64_t g = blockIdx.y, sharing = s.H / s.G, kept = 2 * s.G * s.D;
  const int64_t first_head = g * sharing + static_cast<int64_t>(blockIdx.z) * kHeads;
  const int64_t left = (g + 1) * sharing - first_head;
  const int heads = left < kHeads ? static_cast<int>(left) : kHeads;
  const int64_t last = PositionOf(state, s.T);
  const int64_t tokens = AttendPartTokens(last + 1, parts), begin = part * tokens;
  const int64_t end = begin + tokens < last + 1 ? begin + tokens : last + 1;
  if (begin >= end) return;

  // The token's own row is not in the cache yet: it is taken from qkv, and put there by one block.
  const T* const own_2GD = qkv_1N + s.H * s.D;
  if (blockIdx.z == 0 && end == last + 1) {
    for (int d = threadIdx.x; d < 2 * D; d += kThreads) {
      const int64_t at = (d < D ? g * s.D : (s.G + g - 1) * s.D) + d;
      cache_T2GD[last * kept + at] = own_2GD[at];
    }
  }
  const float scale = kLog2E / sqrtf(static_cast<float>(D));
  for (int i = threadIdx.x; i < kHeads * D; i += kThreads) {
    dynamic[i] = i < heads * D ? ToFloat(qkv_1N[first_head * s.D + i]) * scale : 0.0f;
  }
  __syncthreads();

  const int lane = threadIdx.x % kTeam, team = threadIdx.x / kTeam;
  float max[kHeads], total[kHeads], out[kHeads][kPacks][kVector];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    max[h] = -INFINITY;
    total[h] = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) out[h][p][e] = 0;
    }
  }
  // All teams take every turn, with keys or without: their lanes sum together.
  for (int64_t turn = begin; turn < end; turn += kTeams * kKeys<T>) {
    const int64_t first = turn + team * kKeys<T>;
    Pack<T, kVector> k[kKeys<T>][kPacks], v[kKeys<T>][kPacks];
#pragma unroll
    for (int i = 0; i < kKeys<T>; ++i) {
      const int64_t t = first + i < end ? first + i : end - 1;  // one again: it gets no weight
      const T* const row = t == last ? own_2GD : cache_T2GD + t * kept;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int pack = lane + p * kTeam;
        if (pack >= packs) continue;
        k[i][p] = LoadPack<T, kVector>(row + g * s.D + pack * kVector);
        v[i][p] = LoadPack<T, kVector>(row + (s.G + g) * s.D + pack * kVector);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float score[kKeys<T>] = {};
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int pack = lane + p * kTeam;
        if (pack >= packs) continue;
        const Pack<float, kVector> q = LoadPack<float, kVector>(dynamic + h * D + pack * kVector);
#pragma unroll
        for (int i = 0; i < kKeys<T>; ++i) {
          float key[kVector];
          Widen(k[i][p], key);
#pragma unroll
          for (int e = 0; e < kVector; ++e) score[i] = fmaf(q.v[e], key[e], score[i]);
        }
      }
      float larger = max[h];
#pragma unroll
      for (int i = 0; i < kKeys<T>; ++i) {
#pragma unroll
        for (int offset = kTeam / 2; offset > 0; offset /= 2) {
          score[i] += __shfl_xor_sync(0xffffffffu, score[i], offset);
        }
        if (first + i >= end) score[i] = -INFINITY;
        larger = fmaxf(larger, score[i]);
      }
      const float correction = Weight(max[h], larger);
      max[h] = larger;
      total[h] *= correction;
#pragma unroll
      for (int i = 0; i < kKeys<T>; ++i) {
        score[i] = Weight(score[i], larger);
        total[h] += score[i];
      }
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (lane + p * kTeam >= packs) continue;
#pragma unroll
        for (int e = 0; e < kVector; ++e) out[h][p][e] *= correction;
#pragma unroll
        for (int i = 0; i < kKeys<T>; ++i) {
          float value[kVector];
          Widen(v[i][p], value);
#pragma unroll
          for (int e = 0; e < kVector; ++e) {
            out[h][p][e] = fmaf(score[i], value[e], out[h][p][e]);
          }
        }
      }
    }
  }

  // The teams' sums, in their order.
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (lane == 0) maxima[h][team] = max[h], totals[h][team] = total[h];
  }
  __syncthreads();  // and nobody reads q any more
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= heads) break;
    float largest = maxima[h][0];
    for (int t = 1; t < kTeams; ++t) largest = fmaxf(largest, maxima[h][t]);
    const float correction = Weight(max[h], largest);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int pack = lane + p * kTeam;
      if (pack >= packs) continue;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        dynamic[team * D + pack * kVector + e] = out[h][p][e] * correction;
      }
    }
    __syncthreads();
    float* const partial = partials + ((first_head + h) * parts + part) * (s.D + 2);
    for (int d = threadIdx.x; d < D; d += kThreads) {
      float sum = dynamic[d];
      for (int t = 1; t < kTeams; ++t) sum += dynamic[t * D + d];
      partial[d] = sum;
    }
    if (threadIdx.x == 0) {
      float sum = 0;
      for (int t = 0; t < kTeams; ++t) sum += totals[h][t] * Weight(maxima[h][t], largest);
      partial[D] = largest;
      partial[D + 1] = sum;
    }
    __syncthreads();
  }
}

// A block a head.
__global__ void __launch_bounds__(kThreads)
    CombineKernel(CacheShape s, const StepState* state, const float* partials, int parts,
                  Runtime out_1HD) {
  __shared__ float weights[kMostAttendParts];
  const int64_t h = blockIdx.x, count = PositionOf(state, s.T) + 1, row = s.D + 2;
  const int64_t tokens = AttendPartTokens(count, parts);
  const auto used = static_cast<int>((count + tokens - 1) / tokens);
  const float* const of_head = partials + h * parts * row;
  float largest = -INFINITY, total = 0;
  for (int p = 0; p < used; ++p) largest = fmaxf(largest, of_head[p * row + s.D]);
  for (int p = threadIdx.x; p < used; p += kThreads) {
    weights[p] = Weight(of_head[p * row + s.D], largest);
  }
  __syncthreads();
  for (int p = 0; p < used; ++p) total += of_head[p * row + s.D + 1] * weights[p];
  for (int64_t d = threadIdx.x; d < s.D; d += kThreads) {
    float sum = 0;
    for (int p = 0; p < used; ++p) sum = fmaf(of_head[p * row + d], weights[p], sum);
    out_1HD.Set(h * s.D + d, sum / total);
  }
}

// ---- any head size and dtypes ----

__global__ void __launch_bounds__(kThreads)
    KeepTokenKernel(CacheShape s, Runtime qkv_1N, const StepState* state, Runtime cache_T2GD) {
  const int64_t kept = 2 * s.G * s.D;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < kept) cache_T2GD.Set(PositionOf(state, s.T) * kept + i, qkv_1N.Get(s.H * s.D + i));
}

// The sum or maximum over a block's threads, in all of them. `shared` holds a number for each warp.
template <typename Op>
__device__ float OverBlock(float value, float* shared, Op op) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  __syncthreads();  // nobody reads what was there before
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int w = 1; w < kThreads / 32; ++w) value = op(value, shared[w]);
  return value;
}

// A block a head. Each round takes a key for each thread: their scores, the maximum and sum so far,
// then the values, each thread its elements of the output.
__global__ void __launch_bounds__(kThreads)
    AnyKernel(CacheShape s, Runtime qkv_1N, const StepState* state, Runtime cache_T2GD,
              Runtime out_1HD) {
  extern __shared__ __align__(16) float dynamic[];  // q_D, out_D
  __shared__ float weights[kThreads], over_warps[kThreads / 32];
  float *q_D = dynamic, *out_D = dynamic + s.D;
  const int64_t h = blockIdx.x, g = h / (s.H / s.G), kept = 2 * s.G * s.D;
  const int64_t last = PositionOf(state, s.T);
  const float scale = kLog2E / sqrtf(static_cast<float>(s.D));
  for (int64_t d = threadIdx.x; d < s.D; d += kThreads) {
    q_D[d] = qkv_1N.Get(h * s.D + d) * scale;
    out_D[d] = 0;
  }
  __syncthreads();
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const auto add = [](float a, float b) { return a + b; };
  float max = -INFINITY, sum = 0;
  for (int64_t begin = 0; begin <= last; begin += kThreads) {
    const int64_t t = begin + threadIdx.x;
    float score = -INFINITY;
    if (t <= last) {
      score = 0;
      for (int64_t d = 0; d < s.D; ++d) score += q_D[d] * cache_T2GD.Get(t * kept + g * s.D + d);
    }
    const float new_max = fmaxf(max, OverBlock(score, over_warps, larger));
    const float weight = Weight(score, new_max), correction = Weight(max, new_max);
    weights[threadIdx.x] = weight;
    sum = sum * correction + OverBlock(weight, over_warps, add);  // which also syncs `weights`
    max = new_max;
    const int64_t count = last + 1 - begin < kThreads ? last + 1 - begin : kThreads;
    for (int64_t d = threadIdx.x; d < s.D; d += kThreads) {
      float value = out_D[d] * correction;
      for (int64_t i = 0; i < count; ++i) {
        value += weights[i] * cache_T2GD.Get((begin + i) * kept + (s.G + g) * s.D + d);
      }
      out_D[d] = value;
    }
  }
  for (int64_t d = threadIdx.x; d < s.D; d += kThreads) out_1HD.Set(h * s.D + d, out_D[d] / sum);
}

// ---- launches ----

struct Launch {
  const CacheShape& s;
  const FloatArray &qkv_1N, &cache_T2GD, &out_1HD;
  const StepState* state;
  float* partials;
  cudaStream_t stream;

  bool TakesVectors() const {
    return s.D % kVector == 0 && s.D <= kMostHeadSize && qkv_1N.dtype == cache_T2GD.dtype &&
           Aligned(qkv_1N.data) && Aligned(cache_T2GD.data);
  }

  template <typename T, int kPacks, int kHeads>
  void Run() const {
    const int64_t parts = AttendParts(s.T, s.G), sharing = s.H / s.G;
    const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(s.G),
                    GridOf(sharing, kHeads));
    constexpr int64_t kRows = kTeams > kHeads ? kTeams : kHeads;
    const size_t shared = static_cast<size_t>(kRows * s.D) * sizeof(float);
    PartKernel<T, kPacks, kHeads><<<grid, kThreads, shared, stream>>>(
        s, static_cast<const T*>(qkv_1N.data), state, static_cast<T*>(cache_T2GD.data), partials);
    CombineKernel<<<static_cast<unsigned>(s.H), kThreads, 0, stream>>>(
        s, state, partials, static_cast<int>(parts), Runtime(out_1HD));
  }

  // Heads at once: as many as share keys, and as accumulators allow.
  template <typename T, int kPacks>
  void ChooseHeads() const {
    const int64_t sharing = s.H / s.G;
    if constexpr (kPacks <= kMostSums / 8) {
      if (sharing > 4) return Run<T, kPacks, 8>();
    }
    if constexpr (kPacks <= kMostSums / 4) {
      if (sharing > 2) return Run<T, kPacks, 4>();
    }
    if (sharing > 1) return Run<T, kPacks, 2>();
    Run<T, kPacks, 1>();
  }

  void Vectors() const {
    WithFloatType(qkv_1N.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const int64_t packs = s.D / kVector;
      if (packs <= kTeam) {
        ChooseHeads<T, 1>();
      } else if (packs <= 2 * kTeam) {
        ChooseHeads<T, 2>();
      } else {
        ChooseHeads<T, 4>();
      }
    });
  }

  void Any() const {
    KeepTokenKernel<<<GridOf(2 * s.G * s.D, kThreads), kThreads, 0, stream>>>(
        s, Runtime(qkv_1N), state, Runtime(cache_T2GD));
    const size_t shared = 2 * static_cast<size_t>(s.D) * sizeof(float);
    AnyKernel<<<static_cast<unsigned>(s.H), kThreads, shared, stream>>>(
        s, Runtime(qkv_1N), state, Runtime(cache_T2GD), Runtime(out_1HD));
  }
};

}  // namespace

void LaunchAttendToken(const CacheShape& shape, const FloatArray& qkv_1N, const StepState* state,
                       const FloatArray& cache_T2GD, const FloatArray& out_1HD, float* partials,
                       cudaStream_t stream) {
  const Launch launch{shape, qkv_1N, cache_T2GD, out_1HD, state, partials, stream};
  launch.TakesVectors() ? launch.Vectors() : launch.Any();
}

}  // namespace zeroplan::cuda
