// Largest magnitudes (core/base/fp8.h) of what kernels write, as it is written.
#pragma once

#include "core/base/fp8.h"
#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda {

__device__ inline uint32_t Larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

__device__ inline uint32_t WarpLargest(uint32_t bits) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    bits = Larger(bits, __shfl_xor_sync(0xffffffffu, bits, offset));
  }
  return bits;
}

// Of elements as a T holds them.
template <typename T, int W>
__device__ inline uint32_t LargestOf(const Pack<T, W>& pack) {
  float v[W];
  Widen(pack, v);
  uint32_t bits = 0;
#pragma unroll
  for (int e = 0; e < W; ++e) bits = Larger(bits, MagnitudeBits(v[e]));
  return bits;
}

// Of `v` as the array's Store rounds it.
template <typename T, int W>
__device__ inline uint32_t LargestStored(const Typed<T>&, const float (&v)[W]) {
  return LargestOf(Narrow<T>(v));
}
template <int W>
__device__ inline uint32_t LargestStored(const Runtime& to, const float (&v)[W]) {
  if (to.array.dtype == Dtype::kBF16) return LargestOf(Narrow<Bf16>(v));
  if (to.array.dtype == Dtype::kF16) return LargestOf(Narrow<Half>(v));
  return LargestOf(Narrow<float>(v));
}

// amax = the larger of it and `bits`. It only rises, so that a look at it spares most of the atomic
// operations.
__device__ inline void RaiseTo(uint32_t bits, float* amax) {
  auto* known = reinterpret_cast<uint32_t*>(amax);
  if (bits > *static_cast<volatile uint32_t*>(known)) atomicMax(known, bits);
}

// With the largest of the warp, or of the block; all its threads take part, whole warps.
__device__ inline void RaiseByWarp(uint32_t bits, float* amax) {
  bits = WarpLargest(bits);
  if (threadIdx.x % 32 == 0) RaiseTo(bits, amax);
}
__device__ inline void RaiseByBlock(uint32_t bits, float* amax) {
  __shared__ uint32_t of_warps[32];
  bits = WarpLargest(bits);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = bits;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  bits = WarpLargest(threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0);
  if (threadIdx.x == 0) RaiseTo(bits, amax);
}

}  // namespace zeroplan::cuda
