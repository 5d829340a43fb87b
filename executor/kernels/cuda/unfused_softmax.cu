// One block a row: rows of up to a few thousand keys stay in the first-level cache between the
// passes over them. Legend: R rows, T keys.
#include "executor/kernels/cuda/unfused_softmax.h"

#include "executor/kernels/cuda/gemm_element.cuh"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

// Op over the block, in the same order every time; all threads get the result.
template <typename Op>
__device__ float BlockReduce(float value, float* warps) {
  for (int step = 16; step > 0; step /= 2) {
    value = Op{}(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  __syncthreads();  // the last reduction's results have been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float total = warps[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) total = Op{}(total, warps[i]);
  return total;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) Softmax(T* scores, int64_t keys, float scale) {
  __shared__ float warps[kWarps];
  const int64_t row = blockIdx.x, visible = row % keys + 1;
  T* x = scores + row * keys;
  float largest = -INFINITY;
  for (int64_t k = threadIdx.x; k < visible; k += kThreads) {
    largest = fmaxf(largest, scale * ToFloat(x[k]));
  }
  largest = BlockReduce<Largest>(largest, warps);
  float sum = 0;
  for (int64_t k = threadIdx.x; k < visible; k += kThreads) {
    sum += expf(scale * ToFloat(x[k]) - largest);
  }
  const float inverse = 1.0f / BlockReduce<Sum>(sum, warps);
  // Each thread rewrites only what it alone reads.
  for (int64_t k = threadIdx.x; k < keys; k += kThreads) {
    const float p = k < visible ? expf(scale * ToFloat(x[k]) - largest) * inverse : 0.0f;
    x[k] = FromFloat<T>(p);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    SoftmaxBackward(const T* probs, T* dprobs, int64_t keys, float scale) {
  __shared__ float warps[kWarps];
  const int64_t row = blockIdx.x, visible = row % keys + 1;
  const T* p = probs + row * keys;
  T* d = dprobs + row * keys;
  float sum = 0;
  for (int64_t k = threadIdx.x; k < visible; k += kThreads) sum += ToFloat(p[k]) * ToFloat(d[k]);
  const float delta = BlockReduce<Sum>(sum, warps);
  for (int64_t k = threadIdx.x; k < keys; k += kThreads) {
    const float ds = k < visible ? scale * ToFloat(p[k]) * (ToFloat(d[k]) - delta) : 0.0f;
    d[k] = FromFloat<T>(ds);
  }
}

}  // namespace

void CausalSoftmax(void* scores_RT, Dtype dtype, int64_t R, int64_t T, float scale,
                   cudaStream_t stream) {
  WithFloatType(dtype, [&](auto zero) {
    using E = decltype(zero);
    Softmax<E><<<static_cast<unsigned>(R), kThreads, 0, stream>>>(static_cast<E*>(scores_RT), T,
                                                                  scale);
  });
}

void CausalSoftmaxBackward(const void* probs_RT, void* dprobs_RT, Dtype dtype, int64_t R, int64_t T,
                           float scale, cudaStream_t stream) {
  WithFloatType(dtype, [&](auto zero) {
    using E = decltype(zero);
    SoftmaxBackward<E><<<static_cast<unsigned>(R), kThreads, 0, stream>>>(
        static_cast<const E*>(probs_RT), static_cast<E*>(dprobs_RT), T, scale);
  });
}

}  // namespace zeroplan::cuda
