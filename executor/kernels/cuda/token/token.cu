#include <cmath>

#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/token/token.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

__device__ int64_t PositionOf(const StepState* state, int64_t rows) {
  const int64_t position = state->position;
  if (position < 0 || position >= rows) FailIndex("position", position, 0, rows);
  return position;
}

__global__ void __launch_bounds__(kThreads)
    EmbedTokenKernel(const int32_t* token_1, Runtime wte, Runtime wpe, int64_t positions,
                     const StepState* state, Runtime x_1C, int64_t C, int64_t V) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t token = *token_1;
  if (token < 0 || token >= V) FailIndex("token", token, 0, V);
  if (c >= C) return;
  float x = wte.Get(token * C + c);
  if (positions > 0) x += wpe.Get(PositionOf(state, positions) * C + c);
  x_1C.Set(c, x);
}

__global__ void __launch_bounds__(kThreads)
    RotaryRowKernel(RotaryShape shape, double attention_factor, const StepState* state,
                    float* table_1D) {
  const int64_t half = shape.D / 2;
  const auto position = static_cast<double>(state->position);
  for (int64_t i = threadIdx.x; i < half; i += kThreads) {
    double sine, cosine;  // as the whole table's
    sincos(position * RotaryFrequency(shape, i), &sine, &cosine);
    table_1D[i] = static_cast<float>(cosine * attention_factor);
    table_1D[half + i] = static_cast<float>(sine * attention_factor);
  }
}

__global__ void __launch_bounds__(kThreads)
    KeepKernel(CacheShape s, Runtime qkv_TN, Runtime cache_T2GD) {
  const int64_t kept = 2 * s.G * s.D;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= s.T * kept) return;
  cache_T2GD.Set(i, qkv_TN.Get(i / kept * (s.H * s.D + kept) + s.H * s.D + i % kept));
}

__global__ void __launch_bounds__(kThreads)
    KeepTokenKernel(CacheShape s, Runtime qkv_1N, const StepState* state, Runtime cache_T2GD) {
  const int64_t kept = 2 * s.G * s.D;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < kept) cache_T2GD.Set(PositionOf(state, s.T) * kept + i, qkv_1N.Get(s.H * s.D + i));
}

// The sum over a block's threads, in all of them. `shared` holds a number for each warp.
template <typename Op>
__device__ float OverBlock(float value, float* shared, Op op) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  __syncthreads();  // nobody reads what was there before
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int w = 1; w < kThreads / 32; ++w) value = op(value, shared[w]);
  return value;
}

// A block a head. Each round takes a key for each thread: their scores, the maximum and sum so far
// (online softmax), then the values, each thread its elements of the output.
__global__ void __launch_bounds__(kThreads)
    AttendKernel(CacheShape s, Runtime qkv_1N, const StepState* state, Runtime cache_T2GD,
                 Runtime out_1HD) {
  extern __shared__ float dynamic[];  // q_D, out_D
  __shared__ float weights[kThreads], over_warps[kThreads / 32];
  float *q_D = dynamic, *out_D = dynamic + s.D;
  const int64_t h = blockIdx.x, g = h / (s.H / s.G), kept = 2 * s.G * s.D;
  const int64_t last = PositionOf(state, s.T);
  const float scale = 1.0f / sqrtf(static_cast<float>(s.D));
  for (int64_t d = threadIdx.x; d < s.D; d += kThreads) {
    q_D[d] = qkv_1N.Get(h * s.D + d) * scale;
    out_D[d] = 0;
  }
  __syncthreads();
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const auto add = [](float a, float b) { return a + b; };
  float max = -INFINITY, sum = 0;
  for (int64_t begin = 0; begin <= last; begin += kThreads) {
    const int64_t t = begin + threadIdx.x;
    float score = -INFINITY;
    if (t <= last) {
      score = 0;
      for (int64_t d = 0; d < s.D; ++d) score += q_D[d] * cache_T2GD.Get(t * kept + g * s.D + d);
    }
    const float new_max = fmaxf(max, OverBlock(score, over_warps, larger));
    const float weight = t <= last ? expf(score - new_max) : 0.0f;
    const float correction = begin == 0 ? 0.0f : expf(max - new_max);
    weights[threadIdx.x] = weight;
    sum = sum * correction + OverBlock(weight, over_warps, add);  // which also syncs `weights`
    max = new_max;
    const int64_t count = min(static_cast<int64_t>(kThreads), last + 1 - begin);
    for (int64_t d = threadIdx.x; d < s.D; d += kThreads) {
      float value = out_D[d] * correction;
      for (int64_t i = 0; i < count; ++i) {
        value += weights[i] * cache_T2GD.Get((begin + i) * kept + (s.G + g) * s.D + d);
      }
      out_D[d] = value;
    }
  }
  for (int64_t d = threadIdx.x; d < s.D; d += kThreads) out_1HD.Set(h * s.D + d, out_D[d] / sum);
}

}  // namespace

void LaunchEmbedToken(const int32_t* token, const FloatArray& wte, const FloatArray& wpe,
                      int64_t positions, const StepState* state, const FloatArray& x_1C, int64_t C,
                      int64_t V, cudaStream_t stream) {
  EmbedTokenKernel<<<GridOf(C, kThreads), kThreads, 0, stream>>>(
      token, Runtime(wte), Runtime(wpe), positions, state, Runtime(x_1C), C, V);
}

void LaunchRotaryRow(const RotaryShape& shape, float attention_factor, const StepState* state,
                     float* table_1D, cudaStream_t stream) {
  RotaryRowKernel<<<1, kThreads, 0, stream>>>(shape, static_cast<double>(attention_factor), state,
                                              table_1D);
}

void LaunchKeepKeysValues(const CacheShape& shape, const FloatArray& qkv_TN,
                          const FloatArray& cache_T2GD, cudaStream_t stream) {
  const int64_t elements = shape.T * 2 * shape.G * shape.D;
  KeepKernel<<<GridOf(elements, kThreads), kThreads, 0, stream>>>(shape, Runtime(qkv_TN),
                                                                  Runtime(cache_T2GD));
}

void LaunchAttendToken(const CacheShape& shape, const FloatArray& qkv_1N, const StepState* state,
                       const FloatArray& cache_T2GD, const FloatArray& out_1HD,
                       cudaStream_t stream) {
  KeepTokenKernel<<<GridOf(2 * shape.G * shape.D, kThreads), kThreads, 0, stream>>>(
      shape, Runtime(qkv_1N), state, Runtime(cache_T2GD));
  const size_t shared = 2 * static_cast<size_t>(shape.D) * sizeof(float);
  AttendKernel<<<static_cast<unsigned>(shape.H), kThreads, shared, stream>>>(
      shape, Runtime(qkv_1N), state, Runtime(cache_T2GD), Runtime(out_1HD));
}

}  // namespace zeroplan::cuda
