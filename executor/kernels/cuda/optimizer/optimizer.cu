#include <numbers>

#include "core/program/kernel_workspace.h"
#include "core/program/step_state.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/optimizer/optimizer.h"
#include "executor/kernels/philox.h"
#include "executor/optimizer/step_scalars.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 4;  // vectors of a thread in flight

template <int W>
__device__ inline void AddSquares(const float (&x)[W], double (&sum)[2]) {
#pragma unroll
  for (int e = 0; e < W; ++e) {
    const double wide = static_cast<double>(x[e]);
    sum[e % 2] = fma(wide, wide, sum[e % 2]);
  }
}

// The grid depends on n alone, so the order of additions does too.
template <int W, typename G>
__global__ void __launch_bounds__(kThreads) PartialsKernel(G g_n, int64_t n, double* partials) {
  __shared__ double shared[kThreads / 32];
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads * W;
  int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * W;
  double sum[2] = {};
  for (; i + (kUnroll - 1) * step + W <= n; i += kUnroll * step) {
    float x[kUnroll][W];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) g_n.Load(i + u * step, x[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) AddSquares(x[u], sum);
  }
  for (; i < n; i += step) {
    if (i + W <= n) {
      float x[W];
      g_n.Load(i, x);
      AddSquares(x, sum);
    } else {
      for (int64_t j = i; j < n; ++j) {
        const float x[1] = {g_n.Get(j)};
        AddSquares(x, sum);
      }
    }
  }
  const double total = BlockSum<kThreads>(sum[0] + sum[1], shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    TotalKernel(const double* partials, int count, StepState* state, bool add) {
  __shared__ double shared[kThreads / 32];
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = BlockSum<kThreads>(sum, shared);
  if (threadIdx.x == 0) state->grad_norm_sq = add ? state->grad_norm_sq + sum : sum;
}

}  // namespace

void LaunchNormSq(const FloatArray& g_n, int64_t n, StepState* state, bool add, double* partials,
                  cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(NormBlocks(n));
  if (Aligned(g_n.data)) {
    WithFloatType(g_n.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      PartialsKernel<kVector><<<blocks, kThreads, 0, stream>>>(Typed<T>(g_n), n, partials);
    });
  } else {
    PartialsKernel<1><<<blocks, kThreads, 0, stream>>>(Runtime(g_n), n, partials);
  }
  TotalKernel<<<1, kThreads, 0, stream>>>(partials, static_cast<int>(blocks), state, add);
}

namespace {

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

__global__ void __launch_bounds__(kThreads)
    UniformKernel(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                  float bound) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  const uint64_t element = begin + static_cast<uint64_t>(i);
  const PhiloxBlock words = TensorRandom(seed, tensor, element / 4);
  const uint64_t at = element % 4;
  const uint32_t word = at == 0 ? words[0] : at == 1 ? words[1] : at == 2 ? words[2] : words[3];
  dst_n[i] = (2 * OpenUniform(word) - 1) * bound;
}

}  // namespace

void LaunchConstant(float* dst_n, int64_t n, float value, cudaStream_t stream) {
  if (n == 0) return;
  ConstantKernel<<<GridOf(n, kThreads), kThreads, 0, stream>>>(dst_n, n, value);
}

void LaunchUniform(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                   float bound, cudaStream_t stream) {
  if (n == 0) return;
  UniformKernel<<<GridOf(n, kThreads), kThreads, 0, stream>>>(dst_n, n, seed, tensor, begin, bound);
}

void LaunchNormal(float* dst_n, int64_t n, uint64_t seed, uint32_t tensor, uint64_t begin,
                  float std, cudaStream_t stream) {
  if (n == 0) return;
  NormalKernel<<<GridOf(n, kThreads), kThreads, 0, stream>>>(dst_n, n, seed, tensor, begin, std);
}

namespace {

__global__ void StepScalarsKernel(StepSettings settings, StepState* state) {
  SettleStep(settings, *state);
}

}  // namespace

void LaunchStepScalars(const StepSettings& settings, StepState* state, cudaStream_t stream) {
  StepScalarsKernel<<<1, 1, 0, stream>>>(settings, state);
}

}  // namespace zeroplan::cuda
