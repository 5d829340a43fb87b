#include <cuda_fp8.h>

#include <algorithm>

#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"

namespace zeroplan::cuda {
namespace {

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
    const float number = static_cast<float>((x ^ (x >> 16)) >> 8) * 0x1p-24f - 0.5f;
    if constexpr (sizeof(T) == 1) {
      data[i] = T(number);
    } else {
      data[i] = FromFloat<T>(number);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    Start(Runtime bias_N, Runtime residual_MN, T* y_MN, int64_t N, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    float sum = bias_N.array.data == nullptr ? 0.0f : bias_N.Get(i % N);
    if (residual_MN.array.data != nullptr) sum += residual_MN.Get(i);
    y_MN[i] = FromFloat<T>(sum);
  }
}

}  // namespace

void FillUniform(void* data, Dtype dtype, int64_t n, uint32_t seed, cudaStream_t stream) {
  if (n <= 0) return;
  const auto fill = [&](auto tag) {
    using T = typename decltype(tag)::type;
    Uniform<T><<<Blocks(n), kThreads, 0, stream>>>(static_cast<T*>(data), n, seed);
  };
  if (dtype == Dtype::kE4M3) return fill(TypeTag<__nv_fp8_e4m3>{});
  if (dtype == Dtype::kE5M2) return fill(TypeTag<__nv_fp8_e5m2>{});
  WithFloatType(dtype, fill);
}

void StartFromBias(const FloatArray& bias_N, const FloatArray& residual_MN, const FloatArray& y_MN,
                   int64_t M, int64_t N, cudaStream_t stream) {
  WithFloatType(y_MN.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Start<T><<<Blocks(M * N), kThreads, 0, stream>>>(Runtime(bias_N), Runtime(residual_MN),
                                                     static_cast<T*>(y_MN.data), N, M * N);
  });
}

}  // namespace zeroplan::cuda
