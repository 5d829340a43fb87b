// What the kernels share: access to float arrays by one element or a vector, sums over warps and
// blocks in a fixed order, failures that a kernel finds.
//
// A kernel is written once over accessors: Typed<T> where dtype is known when compiling (the fast
// kernels, by vectors), Runtime where it is not (odd sizes, mixed dtypes).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstdio>
#include <type_traits>

#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

using Bf16 = __nv_bfloat16;
using Half = __half;

__device__ inline float ToFloat(float v) { return v; }
__device__ inline float ToFloat(Bf16 v) { return __bfloat162float(v); }
__device__ inline float ToFloat(Half v) { return __half2float(v); }

// Rounds to nearest, ties to even; fp16 overflows to infinity.
template <typename T>
__device__ inline T FromFloat(float v) {
  if constexpr (sizeof(T) == 4) {
    return v;
  } else if constexpr (__is_same(T, Bf16)) {
    return __float2bfloat16_rn(v);
  } else {
    return __float2half_rn(v);
  }
}

// W neighbours, moved by accesses of up to 16 bytes. REQUIRES: an address of that alignment.
template <typename T, int W>
struct alignas(sizeof(T) * W < 16 ? sizeof(T) * W : 16) Pack {
  T v[W];
};
template <typename T, int W>
__device__ inline Pack<T, W> LoadPack(const T* data) {
  return *reinterpret_cast<const Pack<T, W>*>(data);
}

// Keeps the compiler from holding what it computed from `pack` in registers for later: fp32 copies
// take twice the registers, which halves the loads under way.
template <typename T, int W>
__device__ inline void KeepPacked(Pack<T, W>& pack) {
  if constexpr (sizeof(T) == 2 && W % 2 == 0) {
    auto* words = reinterpret_cast<uint32_t*>(&pack);
#pragma unroll
    for (size_t i = 0; i < sizeof(pack) / 4; ++i) asm volatile("" : "+r"(words[i]));
  }
}

// v = the elements of `pack`. Two of bf16 take two instructions: the compiler, left to itself,
// takes three.
template <typename T, int W>
__device__ inline void Widen(const Pack<T, W>& pack, float (&v)[W]) {
  if constexpr (__is_same(T, Bf16) && W % 2 == 0) {
    const auto* words = reinterpret_cast<const uint32_t*>(&pack);
#pragma unroll
    for (int i = 0; i < W / 2; ++i) {
      v[2 * i] = __uint_as_float(words[i] << 16);
      v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int e = 0; e < W; ++e) v[e] = ToFloat(pack.v[e]);
  }
}

// `v`, each element as FromFloat gives it; 16-bit ones two at a time.
template <typename T, int W>
__device__ inline Pack<T, W> Narrow(const float (&v)[W]) {
  Pack<T, W> pack;
#pragma unroll
  for (int e = 0; e < W; ++e) {
    if constexpr (__is_same(T, Bf16) && W % 2 == 0) {
      if (e % 2 == 0) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(v[e], v[e + 1]);
        reinterpret_cast<__nv_bfloat162*>(&pack)[e / 2] = two;
      }
    } else if constexpr (__is_same(T, Half) && W % 2 == 0) {
      if (e % 2 == 0) reinterpret_cast<__half2*>(&pack)[e / 2] = __floats2half2_rn(v[e], v[e + 1]);
    } else {
      pack.v[e] = FromFloat<T>(v[e]);
    }
  }
  return pack;
}

template <typename T>
struct Typed {
  T* data;

  __host__ __device__ explicit Typed(const FloatArray& array) : data(static_cast<T*>(array.data)) {}

  template <int W>
  __device__ void Load(int64_t i, float (&v)[W]) const {
    Widen(LoadPack<T, W>(data + i), v);
  }
  template <int W>
  __device__ void Store(int64_t i, const float (&v)[W]) const {
    *reinterpret_cast<Pack<T, W>*>(data + i) = Narrow<T>(v);
  }
  __device__ float Get(int64_t i) const { return ToFloat(data[i]); }
  __device__ void Set(int64_t i, float v) const { data[i] = FromFloat<T>(v); }
};

// All threads take the same branch: dtype is a kernel parameter.
struct Runtime {
  FloatArray array;

  __host__ __device__ explicit Runtime(const FloatArray& a) : array(a) {}

  template <int W>
  __device__ void Load(int64_t i, float (&v)[W]) const {
    if (array.dtype == Dtype::kBF16) {
      Typed<Bf16>(array).Load(i, v);
    } else if (array.dtype == Dtype::kF16) {
      Typed<Half>(array).Load(i, v);
    } else {
      Typed<float>(array).Load(i, v);
    }
  }
  template <int W>
  __device__ void Store(int64_t i, const float (&v)[W]) const {
    if (array.dtype == Dtype::kBF16) {
      Typed<Bf16>(array).Store(i, v);
    } else if (array.dtype == Dtype::kF16) {
      Typed<Half>(array).Store(i, v);
    } else {
      Typed<float>(array).Store(i, v);
    }
  }
  __device__ float Get(int64_t i) const {
    float v[1];
    Load(i, v);
    return v[0];
  }
  __device__ void Set(int64_t i, float value) const {
    const float v[1] = {value};
    Store(i, v);
  }
};

template <typename T>
struct TypeTag {
  using type = T;
};
// A number as a type with a `value`.
template <int kValue>
using Int = std::integral_constant<int, kValue>;

// fn(TypeTag<T>) of a float dtype. REQUIRES (callers check): kF32, kBF16 or kF16.
template <typename Fn>
void WithFloatType(Dtype dtype, Fn&& fn) {
  if (dtype == Dtype::kBF16) {
    fn(TypeTag<Bf16>{});
  } else if (dtype == Dtype::kF16) {
    fn(TypeTag<Half>{});
  } else {
    fn(TypeTag<float>{});
  }
}

// Every lane gets the same sum: each step adds the same two numbers in both lanes of a pair.
template <typename T>
__device__ inline T WarpSum(T v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}
__device__ inline float WarpMax(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  }
  return v;
}

// The sum over a block of kThreads in one dimension; every thread gets it. `shared` may be used
// again after the next __syncthreads.
template <int kThreads, typename T>
__device__ inline T BlockSum(T v, T (&shared)[kThreads / 32]) {
  static_assert(kThreads % 32 == 0);
  v = WarpSum(v);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  T sum = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) sum += shared[warp];
  return sum;
}

// Ends the launch, and with it the process's use of the GPU: for input that no launch can check.
__device__ inline void FailIndex(const char* what, long long index, long long at, long long limit) {
  printf("zeroplan: %s %lld at %lld, of %lld\n", what, index, at, limit);
  __trap();
}

inline int64_t CeilDiv64(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Blocks for so many items. Past what a grid has, a launch that the runtime refuses.
inline unsigned GridOf(int64_t items, int64_t per_block) {
  const int64_t blocks = CeilDiv64(items, per_block);
  return blocks > UINT32_MAX ? UINT32_MAX : static_cast<unsigned>(blocks);
}

}  // namespace zeroplan::cuda
