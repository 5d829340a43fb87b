#include "executor/kernels/cuda/device_util.cuh"
#include "tests/executor/cuda/made_up_kernel.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    LeakyReluKernel(Runtime x, Runtime y, int64_t n, float slope) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const float value = x.Get(i);
  y.Set(i, value > 0 ? value : slope * value);
}

}  // namespace

void LaunchLeakyRelu(const FloatArray& x_n, const FloatArray& y_n, int64_t n, float slope,
                     cudaStream_t stream) {
  if (n == 0) return;
  LeakyReluKernel<<<GridOf(n, kThreads), kThreads, 0, stream>>>(Runtime(x_n), Runtime(y_n), n,
                                                                slope);
}

}  // namespace zeroplan::cuda
