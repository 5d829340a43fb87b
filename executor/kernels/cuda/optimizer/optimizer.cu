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
constexpr int kWidth = 4;  // elements a thread: 16 bytes of fp32

// The piece of element i.
__device__ inline int PieceOf(const AdamPieces& pieces, int64_t i) {
  int piece = 0;
  while (piece + 1 < pieces.count && i >= pieces.ends[piece]) ++piece;
  return piece;
}

// Every element goes through the same lines, wherever its launch, vector or shard begins: the bits
// of a result do not depend on how a unit is cut. 28 bytes an element with 16-bit gradients and
// parameters; all of a thread's loads are in flight at once.
template <typename Grad>
__global__ void __launch_bounds__(kThreads)
    AdamWKernel(Grad grad_n, const StepState* state, float* master_n, float* m_n, float* v_n,
                Runtime param_n, int64_t first, int64_t end,
                const __grid_constant__ AdamPieces pieces,
                const __grid_constant__ AdamSettings settings, bool vectors) {
  const int64_t i = first + (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (i >= end) return;
  const bool skip = state->skip != 0, has_param = param_n.array.data != nullptr;
  if (skip && !has_param) return;
  const int count = end - i < kWidth ? static_cast<int>(end - i) : kWidth;
  const bool whole = vectors && count == kWidth;
  float p[kWidth] = {}, g[kWidth] = {}, m[kWidth] = {}, v[kWidth] = {};
  const Typed<float> master({master_n}), first_moment({m_n}), second_moment({v_n});
  if (whole) {
    master.Load(i, p);
    if (!skip) {
      grad_n.Load(i, g);
      first_moment.Load(i, m);
      second_moment.Load(i, v);
    }
  } else {
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      if (e >= count) continue;
      p[e] = master_n[i + e];
      if (skip) continue;
      g[e] = grad_n.Get(i + e);
      m[e] = m_n[i + e];
      v[e] = v_n[i + e];
    }
  }

  if (!skip) {
    const int piece = PieceOf(pieces, i);
    const bool one_piece = i + count <= pieces.ends[piece];
    if (one_piece && pieces.kinds[piece] == AdamPiece::kPadding && !has_param) return;
    const float lr = state->lr, grad_factor = state->grad_factor;
    const float lr1 = lr * (1.0f / state->bias_correction1);
    const float inverse_sqrt_correction2 = 1.0f / sqrtf(state->bias_correction2);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const AdamPiece kind = pieces.kinds[one_piece || e >= count ? piece : PieceOf(pieces, i + e)];
      if (kind == AdamPiece::kPadding) continue;
      const float decay = kind == AdamPiece::kDecayed ? settings.weight_decay : 0.0f;
      const float gradient = g[e] * grad_factor + (settings.decoupled ? 0.0f : decay) * p[e];
      m[e] = m[e] * settings.beta1 + gradient * settings.rest1;
      v[e] = v[e] * settings.beta2 + gradient * gradient * settings.rest2;
      const float denominator = sqrtf(v[e]) * inverse_sqrt_correction2 + settings.eps;
      p[e] -= m[e] * lr1 / denominator + (settings.decoupled ? lr * decay : 0.0f) * p[e];
    }
  }

  if (whole) {
    if (!skip) {
      master.Store(i, p);
      first_moment.Store(i, m);
      second_moment.Store(i, v);
    }
    if (has_param) param_n.Store(i, p);
    return;
  }
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    if (e >= count) continue;
    if (!skip) {
      master_n[i + e] = p[e];
      m_n[i + e] = m[e];
      v_n[i + e] = v[e];
    }
    if (has_param) param_n.Set(i + e, p[e]);
  }
}

}  // namespace

void LaunchAdamW(const FloatArray& grad_n, const StepState* state, float* master_n, float* m_n,
                 float* v_n, const FloatArray& param_n, int64_t first, const AdamPieces& pieces,
                 const AdamSettings& settings, cudaStream_t stream) {
  const int64_t end = pieces.count == 0 ? first : pieces.ends[pieces.count - 1];
  if (end <= first) return;
  const bool vectors = first % kVector == 0 && Aligned(grad_n.data) && Aligned(master_n) &&
                       Aligned(m_n) && Aligned(v_n) && Aligned(param_n.data);
  WithFloatType(grad_n.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    AdamWKernel<<<GridOf(end - first, kThreads * kWidth), kThreads, 0, stream>>>(
        Typed<T>(grad_n), state, master_n, m_n, v_n, Runtime(param_n), first, end, pieces, settings,
        vectors);
  });
}

namespace {

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
