// With n = (x - mean) / std and d = dy * w: dx = (d - mean(d) - n * mean(d * n)) / std,
// dw = sum_M dy * n, db = sum_M dy.
#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/column_sums.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/layer_norm.h"

namespace zeroplan::cuda {
namespace {

template <typename T>
struct Inputs {
  const T *dy_MC, *x_MC, *w_C;
  const float* stats_M2;
};

// Keeps the compiler from holding what it computed from `pack` in registers for later: computing it
// again from 4 registers is cheaper than 8 more.
template <typename T>
__device__ inline void Recompute(Pack<T, kVector>& pack) {
  auto* words = reinterpret_cast<uint32_t*>(&pack);
#pragma unroll
  for (size_t i = 0; i < sizeof(pack) / 4; ++i) asm volatile("" : "+r"(words[i]));
}

// blockDim.x threads (whole warps) work on a row, kVecs vectors each; blockDim.y rows at a time.
// Every thread keeps the sums of dw and db of its columns in registers. A block leaves them in
// partials[block][2][C].
//
// The next row is on its way while one is summed, unless registers are short.
template <typename T, int kVecs, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads)
    BackwardKernel(Inputs<T> in, T* dx_MC, float* partials, int64_t M, int C, bool add_to_dx) {
  constexpr bool kPrefetch = kVecs * sizeof(T) <= 4 && kMaxThreads <= 512;
  using Vec = Pack<T, kVector>;
  // Sums of the warps, by turns in two places: one barrier a row is enough.
  __shared__ float2 row_sums[2][kMaxThreads / 32];
  extern __shared__ float group_sums[];  // [2][C], with several rows at a time

  const int group = threadIdx.y, vecs = C / kVector;
  const int warps = blockDim.x / 32, first_warp = group * warps;
  const float inverse_C = 1.0f / static_cast<float>(C);
  Vec w[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int v = threadIdx.x + k * blockDim.x;
    if (v < vecs) w[k] = LoadPack<T, kVector>(in.w_C + v * kVector);
  }
  float dw[kVecs][kVector] = {}, db[kVecs][kVector] = {};
  Vec dy[kVecs], x[kVecs], next_dy[kVecs], next_x[kVecs];
  const auto load = [&](int64_t m, Vec(&to_dy)[kVecs], Vec(&to_x)[kVecs]) {
    if (m >= M) return;
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int v = threadIdx.x + k * blockDim.x;
      if (v >= vecs) continue;
      to_dy[k] = LoadPack<T, kVector>(in.dy_MC + m * C + v * kVector);
      to_x[k] = LoadPack<T, kVector>(in.x_MC + m * C + v * kVector);
    }
  };

  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  int turn = 0;
  if constexpr (kPrefetch) {
    load(static_cast<int64_t>(blockIdx.x) * blockDim.y + group, next_dy, next_x);
  }
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * blockDim.y; base < M;
       base += step, turn ^= 1) {
    const int64_t m = base + group;
    const bool active = m < M;
    if constexpr (kPrefetch) {
#pragma unroll
      for (int k = 0; k < kVecs; ++k) {
        dy[k] = next_dy[k];
        x[k] = next_x[k];
      }
      load(m + step, next_dy, next_x);
    } else {
      load(m, dy, x);
    }
    const float mean = active ? in.stats_M2[2 * m] : 0.0f;
    const float inverse_std = active ? in.stats_M2[2 * m + 1] : 0.0f;
    float sum_d = 0, sum_dn = 0;
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      if (!active || static_cast<int>(threadIdx.x + k * blockDim.x) >= vecs) continue;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const float g = ToFloat(dy[k].v[e]);
        const float n = (ToFloat(x[k].v[e]) - mean) * inverse_std;
        const float d = g * ToFloat(w[k].v[e]);
        sum_d += d;
        sum_dn += d * n;
        dw[k][e] += g * n;
        db[k][e] += g;
      }
    }
    sum_d = WarpSum(sum_d);
    sum_dn = WarpSum(sum_dn);
    if (threadIdx.x % 32 == 0) {
      row_sums[turn][first_warp + threadIdx.x / 32] = make_float2(sum_d, sum_dn);
    }
    __syncthreads();
    const int lane = threadIdx.x % 32;
    const float2 sums = lane < warps ? row_sums[turn][first_warp + lane] : make_float2(0, 0);
    const float mean_d = WarpSum(sums.x) * inverse_C, mean_dn = WarpSum(sums.y) * inverse_C;
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int v = threadIdx.x + k * blockDim.x;
      if (!active || v >= vecs) continue;
      if constexpr (sizeof(T) == 2) {
        Recompute(dy[k]);
        Recompute(x[k]);
        Recompute(w[k]);
      }
      T* to = dx_MC + m * C + v * kVector;
      Vec old;
      if (add_to_dx) old = LoadPack<T, kVector>(to);
      Vec dx;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const float n = (ToFloat(x[k].v[e]) - mean) * inverse_std;
        const float d = ToFloat(dy[k].v[e]) * ToFloat(w[k].v[e]);
        const float value = (d - mean_d - n * mean_dn) * inverse_std;
        dx.v[e] = FromFloat<T>(add_to_dx ? ToFloat(old.v[e]) + value : value);
      }
      *reinterpret_cast<Vec*>(to) = dx;
    }
  }

  // The groups add up in group 0, one after the other.
  for (int from = 1; from < static_cast<int>(blockDim.y); ++from) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int v = threadIdx.x + k * blockDim.x;
      if (group != from || v >= vecs) continue;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        group_sums[e * vecs + v] = dw[k][e];
        group_sums[C + e * vecs + v] = db[k][e];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      const int v = threadIdx.x + k * blockDim.x;
      if (group != 0 || v >= vecs) continue;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        dw[k][e] += group_sums[e * vecs + v];
        db[k][e] += group_sums[C + e * vecs + v];
      }
    }
  }
  if (group != 0) return;
  float* to = partials + static_cast<int64_t>(blockIdx.x) * 2 * C;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int v = threadIdx.x + k * blockDim.x;
    if (v >= vecs) continue;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      to[v * kVector + e] = dw[k][e];
      to[C + v * kVector + e] = db[k][e];
    }
  }
}

constexpr int kAnyThreads = 256;

// Any C and dtypes: a block a row at a time, sums of dw and db in its partials in memory, where
// each thread has columns of its own.
__global__ void __launch_bounds__(kAnyThreads)
    AnyBackwardKernel(Runtime dy_MC, Runtime x_MC, Runtime w_C, const float* stats_M2,
                      Runtime dx_MC, float* partials, int64_t M, int64_t C, bool add_to_dx) {
  __shared__ float shared[2][kAnyThreads / 32];
  float* dw_C = partials + static_cast<int64_t>(blockIdx.x) * 2 * C;
  float* db_C = dw_C + C;
  for (int64_t c = threadIdx.x; c < C; c += kAnyThreads) dw_C[c] = db_C[c] = 0;
  for (int64_t m = blockIdx.x; m < M; m += gridDim.x) {
    const float mean = stats_M2[2 * m], inverse_std = stats_M2[2 * m + 1];
    float sum_d = 0, sum_dn = 0;
    for (int64_t c = threadIdx.x; c < C; c += kAnyThreads) {
      const float g = dy_MC.Get(m * C + c), n = (x_MC.Get(m * C + c) - mean) * inverse_std;
      const float d = g * w_C.Get(c);
      sum_d += d;
      sum_dn += d * n;
      dw_C[c] += g * n;
      db_C[c] += g;
    }
    __syncthreads();  // the last row's sums have been read
    const float mean_d = BlockSum<kAnyThreads>(sum_d, shared[0]) / static_cast<float>(C);
    const float mean_dn = BlockSum<kAnyThreads>(sum_dn, shared[1]) / static_cast<float>(C);
    for (int64_t c = threadIdx.x; c < C; c += kAnyThreads) {
      const float n = (x_MC.Get(m * C + c) - mean) * inverse_std;
      const float d = dy_MC.Get(m * C + c) * w_C.Get(c);
      const float dx = (d - mean_d - n * mean_dn) * inverse_std;
      dx_MC.Set(m * C + c, add_to_dx ? dx_MC.Get(m * C + c) + dx : dx);
    }
  }
}

struct Launch {
  const FloatArray &dy, &x, &w, &dx;
  const float* stats;
  float* partials;
  int64_t M, C;
  bool add_to_dx;
  cudaStream_t stream;

  template <typename T, int kVecs, int kMaxThreads>
  void Run() const {
    const int64_t row_threads = CeilDiv64(CeilDiv64(C / kVector, kVecs), 32) * 32;
    const int64_t groups = kMaxThreads / row_threads;
    const dim3 block(static_cast<unsigned>(row_threads), static_cast<unsigned>(groups));
    const auto grid = static_cast<unsigned>(LayerNormBackwardBlocks(M));
    // Several rows at a time means at most 256 threads a row, so C <= 2048: within 48 KiB.
    const size_t shared = groups > 1 ? static_cast<size_t>(2 * C) * sizeof(float) : 0;
    const Inputs<T> in{static_cast<const T*>(dy.data), static_cast<const T*>(x.data),
                       static_cast<const T*>(w.data), stats};
    BackwardKernel<T, kVecs, kMaxThreads><<<grid, block, shared, stream>>>(
        in, static_cast<T*>(dx.data), partials, M, static_cast<int>(C), add_to_dx);
  }
};

}  // namespace

void LaunchLayerNormBackward(const FloatArray& dy_MC, const FloatArray& x_MC,
                             const FloatArray& w_C, const float* stats_M2,
                             const LayerNormGradients& out, float* partials, int64_t M, int64_t C,
                             cudaStream_t stream) {
  const int64_t vecs = C / kVector;
  const Dtype dtype = dy_MC.dtype;
  const FloatArray& dx_MC = out.dx_MC;
  const bool vectors = C % kVector == 0 && vecs <= 2 * 768 && x_MC.dtype == dtype &&
                       w_C.dtype == dtype && dx_MC.dtype == dtype && Aligned(dy_MC.data) &&
                       Aligned(x_MC.data) && Aligned(w_C.data) && Aligned(dx_MC.data);
  const int64_t blocks = LayerNormBackwardBlocks(M);
  if (vectors) {
    const Launch launch{dy_MC,    x_MC, w_C, dx_MC,         stats_M2,
                        partials, M,    C,   out.add_to_dx, stream};
    WithFloatType(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if (vecs <= 512) {
        launch.Run<T, 1, 512>();
      } else if (vecs <= 2 * 512) {
        launch.Run<T, 2, 512>();
      } else {
        launch.Run<T, 2, 768>();
      }
    });
  } else {
    AnyBackwardKernel<<<static_cast<unsigned>(blocks), kAnyThreads, 0, stream>>>(
        Runtime(dy_MC), Runtime(x_MC), Runtime(w_C), stats_M2, Runtime(dx_MC), partials, M, C,
        out.add_to_dx);
  }
  AddPartials(partials, blocks, 2 * C, C, out.dw_C, out.add_to_weights, stream);
  AddPartials(partials + C, blocks, 2 * C, C, out.db_C, out.add_to_weights, stream);
}

}  // namespace zeroplan::cuda
