// What the kernels of cross-entropy share: maximum and sum of exp(x - maximum), in parts.
#pragma once

#include <cfloat>

#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda::cross_entropy {

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

}  // namespace zeroplan::cuda::cross_entropy
