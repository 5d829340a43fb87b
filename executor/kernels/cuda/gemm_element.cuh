// Elements of the three float dtypes in registers, one or 16 bytes of them at a time; sums and
// formulas are fp32, writes round to nearest even.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/base/dtype.h"

namespace zeroplan::cuda::gemm_element {

__device__ inline float ToFloat(float x) { return x; }
__device__ inline float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float ToFloat(__half x) { return __half2float(x); }

template <typename T>
__device__ T FromFloat(float x);
template <>
__device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// V elements loaded and stored at once; the address is a multiple of V * sizeof(T).
template <typename T, int V>
struct alignas(V * sizeof(T)) Pack {
  T x[V];
};

template <typename T>
inline constexpr int kPackSize = 16 / static_cast<int>(sizeof(T));

inline bool Aligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// Calls fn(T{}) with the type of a float dtype; other dtypes do nothing (launchers are given float
// arguments only; their callers check).
template <typename Fn>
void WithFloatType(Dtype dtype, Fn&& fn) {
  if (dtype == Dtype::kF32) fn(float{});
  if (dtype == Dtype::kBF16) fn(__nv_bfloat16{});
  if (dtype == Dtype::kF16) fn(__half{});
}

}  // namespace zeroplan::cuda::gemm_element
