#include "core/program/kernel_workspace.h"
#include "core/program/step_state.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/optimizer/optimizer.h"

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

}  // namespace zeroplan::cuda
