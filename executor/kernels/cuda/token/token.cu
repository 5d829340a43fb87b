#include <cmath>

#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/token/position.cuh"
#include "executor/kernels/cuda/token/token.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

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

}  // namespace zeroplan::cuda
