// GELU and its gradient (gelu.cuh): gelu' = s + x s (1 - s) 2u'.
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/elementwise.h"
#include "executor/kernels/cuda/elementwise/gelu.cuh"
#include "executor/kernels/cuda/magnitude.cuh"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

template <bool kExact>
__device__ inline float GeluSlope(float x) {
  const float s = Gate<kExact>(x), slope = s * (1.0f - s);
  // Far out the slope is 0 while x^2 may be infinite.
  const float bend = slope == 0.0f ? 0.0f : x * slope * kTwoScale * (3.0f * kCubic * x * x + 1.0f);
  return s + bend;
}

// W elements of x, from i on, to y and, where wanted, pre. All is read before anything is written.
// Returns the largest magnitude in y.
template <bool kExact, int W, typename X, typename A>
__device__ inline uint32_t ForwardAt(const X& x_RN, const A& bias_N, bool biased, const A& pre_RN,
                                     bool keeps_pre, const A& y_RN, int64_t i, int64_t column) {
  float x[W], bias[W] = {};
  x_RN.Load(i, x);
  if (biased) bias_N.Load(column, bias);
#pragma unroll
  for (int e = 0; e < W; ++e) x[e] += bias[e];
  if (keeps_pre) pre_RN.Store(i, x);
#pragma unroll
  for (int e = 0; e < W; ++e) x[e] = Gelu<kExact>(x[e]);
  y_RN.Store(i, x);
  return LargestStored(y_RN, x);
}

// W elements a thread; the last thread takes the rest one by one. With a bias W divides N.
template <bool kExact, int W, bool kTakesLargest, typename X, typename A>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(X x_RN, A bias_N, bool biased, A pre_RN, bool keeps_pre, A y_RN, float* amax,
                  int64_t n, int64_t N) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
  // A 64-bit remainder takes longer than all the rest.
  const auto column = [&](int64_t at) -> int64_t {
    if (!biased) return 0;
    return n <= UINT32_MAX ? static_cast<uint32_t>(at) % static_cast<uint32_t>(N) : at % N;
  };
  uint32_t largest = 0;
  if (i + W <= n) {
    largest = ForwardAt<kExact, W>(x_RN, bias_N, biased, pre_RN, keeps_pre, y_RN, i, column(i));
  } else {
    for (int64_t j = i; j < n; ++j) {
      largest = Larger(largest, ForwardAt<kExact, 1>(x_RN, bias_N, biased, pre_RN, keeps_pre, y_RN,
                                                     j, column(j)));
    }
  }
  if constexpr (kTakesLargest) RaiseByBlock(largest, amax);
}

template <bool kExact, int W, typename D, typename A>
__device__ inline uint32_t BackwardAt(const D& dy_n, const A& pre_n, const A& dx_n, int64_t i) {
  float d[W], x[W];
  dy_n.Load(i, d);
  pre_n.Load(i, x);
#pragma unroll
  for (int e = 0; e < W; ++e) d[e] *= GeluSlope<kExact>(x[e]);
  dx_n.Store(i, d);
  return LargestStored(dx_n, d);
}

template <bool kExact, int W, bool kTakesLargest, typename D, typename A>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(D dy_n, A pre_n, A dx_n, float* amax, int64_t n) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
  uint32_t largest = 0;
  if (i + W <= n) {
    largest = BackwardAt<kExact, W>(dy_n, pre_n, dx_n, i);
  } else {
    for (int64_t j = i; j < n; ++j) {
      largest = Larger(largest, BackwardAt<kExact, 1>(dy_n, pre_n, dx_n, j));
    }
  }
  if constexpr (kTakesLargest) RaiseByBlock(largest, amax);
}

// fn(exact, W, TypeTag of the first array's accessor, TypeTag of the others'), the first two as
// types with a `value`. Vectors of `first` are 16 bytes.
template <typename Fn>
void Dispatch(Dtype first, Dtype others, bool vectors, Fn&& fn) {
  if (!vectors || (first != others && first != Dtype::kF32)) {
    fn(Int<1>{}, Int<1>{}, TypeTag<Runtime>{}, TypeTag<Runtime>{});
    return;
  }
  WithFloatType(others, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = TypeTag<Typed<T>>;
    if constexpr (sizeof(T) == 4) {
      fn(Int<1>{}, Int<4>{}, A{}, A{});
    } else if (first == Dtype::kF32) {
      fn(Int<0>{}, Int<4>{}, TypeTag<Typed<float>>{}, A{});
    } else {
      fn(Int<0>{}, Int<8>{}, A{}, A{});
    }
  });
}

}  // namespace

void LaunchGeluForward(const FloatArray& x_RN, const FloatArray& bias_N, const FloatArray& pre_RN,
                       const FloatArray& y_RN, int64_t R, int64_t N, cudaStream_t stream,
                       float* amax) {
  const int64_t n = R * N;
  if (n == 0) return;
  const bool biased = bias_N.data != nullptr, keeps_pre = pre_RN.data != nullptr;
  const bool vectors = Aligned(x_RN.data) && Aligned(y_RN.data) && Aligned(bias_N.data) &&
                       Aligned(pre_RN.data) && (!biased || N % kVector == 0) &&
                       (!biased || bias_N.dtype == y_RN.dtype) &&
                       (!keeps_pre || pre_RN.dtype == y_RN.dtype);
  Dispatch(x_RN.dtype, y_RN.dtype, vectors, [&](auto exact, auto width, auto first, auto others) {
    constexpr int W = decltype(width)::value;
    using X = typename decltype(first)::type;
    using A = typename decltype(others)::type;
    const auto launch = [&](auto kernel) {
      kernel<<<GridOf(n, kThreads * W), kThreads, 0, stream>>>(
          X(x_RN), A(bias_N), biased, A(pre_RN), keeps_pre, A(y_RN), amax, n, N);
    };
    constexpr bool kExact = decltype(exact)::value != 0;
    amax == nullptr ? launch(ForwardKernel<kExact, W, false, X, A>)
                    : launch(ForwardKernel<kExact, W, true, X, A>);
  });
}

void LaunchGeluBackward(const FloatArray& dy_n, const FloatArray& pre_n, const FloatArray& dx_n,
                        int64_t n, cudaStream_t stream, float* amax) {
  if (n == 0) return;
  const bool vectors =
      Aligned(dy_n.data) && Aligned(pre_n.data) && Aligned(dx_n.data) && pre_n.dtype == dx_n.dtype;
  Dispatch(dy_n.dtype, dx_n.dtype, vectors, [&](auto exact, auto width, auto first, auto others) {
    constexpr int W = decltype(width)::value;
    using D = typename decltype(first)::type;
    using A = typename decltype(others)::type;
    const auto launch = [&](auto kernel) {
      kernel<<<GridOf(n, kThreads * W), kThreads, 0, stream>>>(D(dy_n), A(pre_n), A(dx_n), amax, n);
    };
    constexpr bool kExact = decltype(exact)::value != 0;
    amax == nullptr ? launch(BackwardKernel<kExact, W, false, D, A>)
                    : launch(BackwardKernel<kExact, W, true, D, A>);
  });
}

}  // namespace zeroplan::cuda
