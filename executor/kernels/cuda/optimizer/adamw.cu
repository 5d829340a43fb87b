#include "core/program/step_state.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/optimizer/optimizer.h"

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

}  // namespace zeroplan::cuda
