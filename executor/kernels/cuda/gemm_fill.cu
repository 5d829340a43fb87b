#include "executor/kernels/cuda/gemm_fill.h"

#include <algorithm>

#include "executor/kernels/cuda/gemm_element.cuh"

namespace zeroplan::cuda {
namespace {

using namespace gemm_element;

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 8192;

unsigned Blocks(int64_t n) {
  return static_cast<unsigned>(std::min((n + kThreads - 1) / kThreads, kMostBlocks));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) Uniform(T* data, int64_t n, uint32_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += stride) {
    // An integer hash (multiply and shift, twice) of index and seed.
    uint32_t x = static_cast<uint32_t>(i) * 0x9e3779b1u + seed;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    data[i] = FromFloat<T>(static_cast<float>((x ^ (x >> 16)) >> 8) * 0x1p-24f - 0.5f);
  }
}

__device__ float Load(const void* data, Dtype dtype, int64_t i) {
  if (dtype == Dtype::kF32) return static_cast<const float*>(data)[i];
  if (dtype == Dtype::kBF16) return ToFloat(static_cast<const __nv_bfloat16*>(data)[i]);
  return ToFloat(static_cast<const __half*>(data)[i]);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    Start(const void* bias_N, Dtype bias_dtype, const void* residual_MN, Dtype residual_dtype,
          T* y_MN, int64_t N, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    float sum = bias_N == nullptr ? 0.0f : Load(bias_N, bias_dtype, i % N);
    if (residual_MN != nullptr) sum += Load(residual_MN, residual_dtype, i);
    y_MN[i] = FromFloat<T>(sum);
  }
}

}  // namespace

void FillUniform(void* data, Dtype dtype, int64_t n, uint32_t seed, cudaStream_t stream) {
  if (n <= 0) return;
  WithFloatType(dtype, [&](auto zero) {
    using T = decltype(zero);
    Uniform<T><<<Blocks(n), kThreads, 0, stream>>>(static_cast<T*>(data), n, seed);
  });
}

void StartFromBias(const void* bias_N, Dtype bias_dtype, const void* residual_MN,
                   Dtype residual_dtype, void* y_MN, Dtype y_dtype, int64_t M, int64_t N,
                   cudaStream_t stream) {
  WithFloatType(y_dtype, [&](auto zero) {
    using T = decltype(zero);
    Start<T><<<Blocks(M * N), kThreads, 0, stream>>>(bias_N, bias_dtype, residual_MN,
                                                     residual_dtype, static_cast<T*>(y_MN), N,
                                                     M * N);
  });
}

}  // namespace zeroplan::cuda
