#include <numbers>

#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/optimizer/optimizer.h"
#include "executor/kernels/philox.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) ConstantKernel(float* dst_n, int64_t n, float value) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) dst_n[i] = value;
}

// Each thread makes its own element's number, by Box-Muller from its pair of the group's four
// words, as the CPU does; the other three of the group are others' work.
__global__ void __launch_bounds__(kThreads)
    NormalKernel(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                 float std) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const uint64_t element = begin + static_cast<uint64_t>(i);
  const PhiloxBlock words = TensorRandom(seed, tensor, element / 4);
  const bool second_pair = element % 4 >= 2, odd = element % 2 != 0;
  const uint32_t word0 = second_pair ? words[2] : words[0];
  const uint32_t word1 = second_pair ? words[3] : words[1];
  const float radius = sqrtf(-2.0f * logf(OpenUniform(word0)));
  const float angle = 2.0f * std::numbers::pi_v<float> * OpenUniform(word1);
  dst_n[i] = radius * (odd ? sinf(angle) : cosf(angle)) * std;
}

}  // namespace

void LaunchConstant(float* dst_n, int64_t n, float value, cudaStream_t stream) {
  if (n == 0) return;
  ConstantKernel<<<GridOf(n, kThreads), kThreads, 0, stream>>>(dst_n, n, value);
}

void LaunchNormal(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                  float std, cudaStream_t stream) {
  if (n == 0) return;
  NormalKernel<<<GridOf(n, kThreads), kThreads, 0, stream>>>(dst_n, n, seed, tensor, begin, std);
}

}  // namespace zeroplan::cuda
