// GELU as x s with s = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3), which keeps its
// relative accuracy for large negative x; gelu' = s + x s (1 - s) 2u'.
#include "executor/kernels/cuda/gelu_epilogue.h"
#include "executor/kernels/cuda/gemm_element.cuh"

namespace zeroplan::cuda {
namespace {

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
struct Forward {
  __device__ float operator()(float x, float) const { return x * Gate<T>(x); }
};

template <typename T>
struct Backward {
  __device__ float operator()(float x, float d) const {
    const float s = Gate<T>(x), slope = s * (1.0f - s);
    // Far out the slope is 0 while x^2 may be infinite.
    const float bend =
        slope == 0.0f ? 0.0f : x * slope * kTwoScale * (3.0f * kCubic * x * x + 1.0f);
    return d * (s + bend);
  }
};

// out[i] = Op(pre[i], out[i]), V at a time; n is a multiple of V.
template <typename T, int V, typename Op, bool kReadsOut>
__global__ void __launch_bounds__(kThreads) Elementwise(const T* pre, T* out, int64_t n) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (at >= n) return;
  const auto x = *reinterpret_cast<const Pack<T, V>*>(pre + at);
  Pack<T, V> y = {};
  if constexpr (kReadsOut) y = *reinterpret_cast<const Pack<T, V>*>(out + at);
#pragma unroll
  for (int i = 0; i < V; ++i) y.x[i] = FromFloat<T>(Op{}(ToFloat(x.x[i]), ToFloat(y.x[i])));
  *reinterpret_cast<Pack<T, V>*>(out + at) = y;
}

template <typename T, int V, typename Op, bool kReadsOut>
void LaunchPacks(const T* pre, T* out, int64_t n, cudaStream_t stream) {
  const int64_t per_block = int64_t{kThreads} * V;
  Elementwise<T, V, Op, kReadsOut>
      <<<static_cast<unsigned>((n + per_block - 1) / per_block), kThreads, 0, stream>>>(pre, out,
                                                                                        n);
}

template <typename T, typename Op, bool kReadsOut>
void LaunchAll(const void* pre, void* out, int64_t n, cudaStream_t stream) {
  const auto* x = static_cast<const T*>(pre);
  auto* y = static_cast<T*>(out);
  constexpr int V = kPackSize<T>;
  const int64_t packed = Aligned16(pre) && Aligned16(out) ? n / V * V : 0;
  if (packed > 0) LaunchPacks<T, V, Op, kReadsOut>(x, y, packed, stream);
  if (packed < n) LaunchPacks<T, 1, Op, kReadsOut>(x + packed, y + packed, n - packed, stream);
}

}  // namespace

void LaunchGeluOfProduct(const void* pre_n, void* y_n, Dtype dtype, int64_t n,
                         cudaStream_t stream) {
  WithFloatType(dtype, [&](auto zero) {
    using T = decltype(zero);
    LaunchAll<T, Forward<T>, false>(pre_n, y_n, n, stream);
  });
}

void LaunchGeluGradOfProduct(const void* pre_n, void* d_n, Dtype dtype, int64_t n,
                             cudaStream_t stream) {
  WithFloatType(dtype, [&](auto zero) {
    using T = decltype(zero);
    LaunchAll<T, Backward<T>, true>(pre_n, d_n, n, stream);
  });
}

}  // namespace zeroplan::cuda
