// GELU as x s with s = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3), which keeps its
// relative accuracy for large negative x; gelu' = s + x s (1 - s) 2u'.
#include "executor/kernels/cuda/gelu_epilogue.h"
#include "executor/kernels/cuda/gemm_element.cuh"

namespace zeroplan::cuda {
namespace {

using namespace gemm_element;

constexpr int kThreads = 256;
constexpr float kTwoScale = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;

// The fast exponential and quotient are off by a few units of 2^-22: nothing where results are
// rounded to 16 bits.
template <typename T>
__device__ float Gate(float x) {
  const float minus_two_u = -kTwoScale * x * (kCubic * x * x + 1.0f);
  if constexpr (sizeof(T) == 4) return 1.0f / (1.0f + expf(minus_two_u));
  return __fdividef(1.0f, 1.0f + __expf(minus_two_u));
}

template <typename T>
__device__ float Gelu(float x) {
  return x * Gate<T>(x);
}

template <typename T>
__device__ float GeluSlope(float x) {
  const float s = Gate<T>(x), slope = s * (1.0f - s);
  // Far out the slope is 0 while x^2 may be infinite.
  const float bend = slope == 0.0f ? 0.0f : x * slope * kTwoScale * (3.0f * kCubic * x * x + 1.0f);
  return s + bend;
}

template <typename T, int V>
__device__ void Load(const T* from, float (&to)[V]) {
  const auto pack = *reinterpret_cast<const Pack<T, V>*>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) to[i] = ToFloat(pack.x[i]);
}

template <typename T, int V>
__device__ void Store(const float (&from)[V], T* to) {
  Pack<T, V> pack;
#pragma unroll
  for (int i = 0; i < V; ++i) pack.x[i] = FromFloat<T>(from[i]);
  *reinterpret_cast<Pack<T, V>*>(to) = pack;
}

// Four elements a thread where V is 4: N and n are multiples of V. A thread reads its elements of
// sums before it writes them, so they may be y's or dx'.
template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    GeluOfSums(const float* sums, const T* bias_N, T* pre, T* y, int64_t n, int64_t N) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (at >= n) return;
  float x[V], bias[V], gelu[V];
  Load<float, V>(sums + at, x);
  Load<T, V>(bias_N + at % N, bias);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    x[i] += bias[i];
    gelu[i] = Gelu<T>(x[i]);
  }
  Store<T, V>(x, pre + at);
  Store<T, V>(gelu, y + at);
}

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    GeluGradOfSums(const float* sums, const T* pre, T* dx, int64_t n) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (at >= n) return;
  float d[V], x[V];
  Load<float, V>(sums + at, d);
  Load<T, V>(pre + at, x);
#pragma unroll
  for (int i = 0; i < V; ++i) d[i] *= GeluSlope<T>(x[i]);
  Store<T, V>(d, dx + at);
}

template <int V>
unsigned Blocks(int64_t n) {
  const int64_t per_block = int64_t{kThreads} * V;
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

}  // namespace

void LaunchGeluOfSums(const float* sums_RN, const void* bias_N, void* pre_RN, void* y_RN,
                      Dtype dtype, int64_t R, int64_t N, cudaStream_t stream) {
  const int64_t n = R * N;
  const bool packed = N % 4 == 0 && Aligned16(sums_RN) && Aligned16(bias_N) && Aligned16(pre_RN) &&
                      Aligned16(y_RN);
  WithFloatType(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* bias = static_cast<const T*>(bias_N);
    auto *pre = static_cast<T*>(pre_RN), *y = static_cast<T*>(y_RN);
    if (packed) {
      GeluOfSums<T, 4><<<Blocks<4>(n), kThreads, 0, stream>>>(sums_RN, bias, pre, y, n, N);
    } else {
      GeluOfSums<T, 1><<<Blocks<1>(n), kThreads, 0, stream>>>(sums_RN, bias, pre, y, n, N);
    }
  });
}

void LaunchGeluGradOfSums(const float* sums_RN, const void* pre_RN, void* dx_RN, Dtype dtype,
                          int64_t R, int64_t N, cudaStream_t stream) {
  const int64_t n = R * N;
  const bool packed =
      n % 4 == 0 && Aligned16(sums_RN) && Aligned16(pre_RN) && Aligned16(dx_RN);
  WithFloatType(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* pre = static_cast<const T*>(pre_RN);
    auto* dx = static_cast<T*>(dx_RN);
    if (packed) {
      GeluGradOfSums<T, 4><<<Blocks<4>(n), kThreads, 0, stream>>>(sums_RN, pre, dx, n);
    } else {
      GeluGradOfSums<T, 1><<<Blocks<1>(n), kThreads, 0, stream>>>(sums_RN, pre, dx, n);
    }
  });
}

}  // namespace zeroplan::cuda
