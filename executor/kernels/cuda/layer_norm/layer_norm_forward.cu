#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/layer_norm/layer_norm.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

// Keeps the compiler from holding what it computed from `pack` in registers for later: fp32 copies
// of a row take twice the registers, which halves the rows on their way.
template <typename T>
__device__ inline void Recompute(Pack<T, kVector>& pack) {
  if constexpr (sizeof(T) == 2) {
    auto* words = reinterpret_cast<uint32_t*>(&pack);
#pragma unroll
    for (size_t i = 0; i < sizeof(pack) / 4; ++i) asm volatile("" : "+r"(words[i]));
  }
}

// A row is kept in registers, kVecs vectors a thread, by a warp or by a whole block: read once, and
// the variance comes from differences to the mean.
template <typename T, int kVecs, bool kBlockPerRow>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? (kVecs <= 4 ? 5 : 4) : 2)
    ForwardKernel(const T* x_MC, const T* w_C, const T* b_C, T* y_MC, float* stats_M2, int64_t M,
                  int C, float eps) {
  __shared__ float shared[2][kThreads / 32];
  constexpr int kLanes = kBlockPerRow ? kThreads : 32;
  const int lane = kBlockPerRow ? threadIdx.x : threadIdx.x % 32;
  const int64_t m = kBlockPerRow
                        ? blockIdx.x
                        : static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (m >= M) return;  // whole warps, and never part of a block that synchronises
  const int vecs = C / kVector;
  const T* x_C = x_MC + m * C;

  Pack<T, kVector> x[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int v = lane + k * kLanes;
    if (v < vecs) x[k] = LoadPack<T, kVector>(x_C + v * kVector);
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (lane + k * kLanes >= vecs) continue;
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum += ToFloat(x[k].v[e]);
  }
  if constexpr (kBlockPerRow) {
    sum = BlockSum<kThreads>(sum, shared[0]);
  } else {
    sum = WarpSum(sum);
  }
  const float mean = sum / static_cast<float>(C);
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (lane + k * kLanes >= vecs) continue;
    Recompute(x[k]);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float d = ToFloat(x[k].v[e]) - mean;
      squares += d * d;
    }
  }
  if constexpr (kBlockPerRow) {
    squares = BlockSum<kThreads>(squares, shared[1]);
  } else {
    squares = WarpSum(squares);
  }
  const float inverse_std = 1.0f / sqrtf(squares / static_cast<float>(C) + eps);
  T* y_C = y_MC + m * C;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int v = lane + k * kLanes;
    if (v >= vecs) continue;
    Recompute(x[k]);
    const Pack<T, kVector> w = LoadPack<T, kVector>(w_C + v * kVector);
    const Pack<T, kVector> b = LoadPack<T, kVector>(b_C + v * kVector);
    Pack<T, kVector> y;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float normal = (ToFloat(x[k].v[e]) - mean) * inverse_std;
      y.v[e] = FromFloat<T>(normal * ToFloat(w.v[e]) + ToFloat(b.v[e]));
    }
    *reinterpret_cast<Pack<T, kVector>*>(y_C + v * kVector) = y;
  }
  if (lane == 0) {
    stats_M2[2 * m] = mean;
    stats_M2[2 * m + 1] = inverse_std;
  }
}

// Any C and dtypes: a block a row, which is read three times.
__global__ void __launch_bounds__(kThreads)
    AnyForwardKernel(Runtime x_MC, Runtime w_C, Runtime b_C, Runtime y_MC, float* stats_M2,
                     int64_t C, float eps) {
  __shared__ float shared[2][kThreads / 32];
  const int64_t m = blockIdx.x;
  float sum = 0;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) sum += x_MC.Get(m * C + c);
  const float mean = BlockSum<kThreads>(sum, shared[0]) / static_cast<float>(C);
  float squares = 0;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    const float d = x_MC.Get(m * C + c) - mean;
    squares += d * d;
  }
  squares = BlockSum<kThreads>(squares, shared[1]);
  const float inverse_std = 1.0f / sqrtf(squares / static_cast<float>(C) + eps);
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    const float normal = (x_MC.Get(m * C + c) - mean) * inverse_std;
    y_MC.Set(m * C + c, normal * w_C.Get(c) + b_C.Get(c));
  }
  if (threadIdx.x == 0) {
    stats_M2[2 * m] = mean;
    stats_M2[2 * m + 1] = inverse_std;
  }
}

struct Launch {
  const FloatArray &x, &w, &b, &y;
  float* stats;
  int64_t M, C;
  float eps;
  cudaStream_t stream;

  template <typename T, int kVecs, bool kBlockPerRow>
  void Run() const {
    const unsigned grid = kBlockPerRow ? static_cast<unsigned>(M) : GridOf(M, kThreads / 32);
    ForwardKernel<T, kVecs, kBlockPerRow><<<grid, kThreads, 0, stream>>>(
        static_cast<const T*>(x.data), static_cast<const T*>(w.data), static_cast<const T*>(b.data),
        static_cast<T*>(y.data), stats, M, static_cast<int>(C), eps);
  }
};

}  // namespace

void LaunchLayerNormForward(const FloatArray& x_MC, const FloatArray& w_C, const FloatArray& b_C,
                            const FloatArray& y_MC, float* stats_M2, int64_t M, int64_t C,
                            float eps, cudaStream_t stream) {
  const int64_t vecs = C / kVector;
  const bool vectors = C % kVector == 0 && vecs <= 8 * kThreads && x_MC.dtype == w_C.dtype &&
                       x_MC.dtype == b_C.dtype && x_MC.dtype == y_MC.dtype && Aligned(x_MC.data) &&
                       Aligned(w_C.data) && Aligned(b_C.data) && Aligned(y_MC.data);
  if (!vectors) {
    AnyForwardKernel<<<static_cast<unsigned>(M), kThreads, 0, stream>>>(
        Runtime(x_MC), Runtime(w_C), Runtime(b_C), Runtime(y_MC), stats_M2, C, eps);
    return;
  }
  const Launch launch{x_MC, w_C, b_C, y_MC, stats_M2, M, C, eps, stream};
  WithFloatType(x_MC.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (vecs <= 32) {
      launch.Run<T, 1, false>();
    } else if (vecs <= 2 * 32) {
      launch.Run<T, 2, false>();
    } else if (vecs <= 3 * 32) {
      launch.Run<T, 3, false>();
    } else if (vecs <= 4 * 32) {
      launch.Run<T, 4, false>();
    } else if (vecs <= 8 * 32) {
      launch.Run<T, 8, false>();
    } else if (vecs <= 2 * kThreads) {
      launch.Run<T, 2, true>();
    } else if (vecs <= 4 * kThreads) {
      launch.Run<T, 4, true>();
    } else {
      launch.Run<T, 8, true>();
    }
  });
}

}  // namespace zeroplan::cuda
