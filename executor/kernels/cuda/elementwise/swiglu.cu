// SwiGLU: y = gate * s * up with s = 1 / (1 + exp(-gate)).
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/elementwise.h"
#include "executor/kernels/cuda/elementwise/sigmoid.cuh"
#include "executor/kernels/cuda/magnitude.cuh"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

// A block takes W columns a thread of row blockIdx.x. Returns the largest magnitude it wrote.
template <bool kExact, int W, typename A>
__device__ inline uint32_t Forward(const A& gu_M2F, const A& y_MF, int64_t F) {
  const int64_t m = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  if (c >= F) return 0;
  float gate[W], up[W];
  gu_M2F.Load(2 * m * F + c, gate);
  gu_M2F.Load((2 * m + 1) * F + c, up);
#pragma unroll
  for (int e = 0; e < W; ++e) gate[e] *= Sigmoid<kExact>(gate[e]) * up[e];
  y_MF.Store(m * F + c, gate);
  return LargestStored(y_MF, gate);
}

template <bool kExact, int W, bool kTakesLargest, typename A>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(A gu_M2F, A y_MF, float* amax, int64_t F) {
  const uint32_t largest = Forward<kExact, W>(gu_M2F, y_MF, F);
  if constexpr (kTakesLargest) RaiseByBlock(largest, amax);
}

// dup = dy * gate * s, dgate = dy * up * s * (1 + gate * (1 - s)).
template <bool kExact, int W, typename A>
__device__ inline uint32_t Backward(const A& dy_MF, const A& gu_M2F, int64_t F) {
  const int64_t m = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  if (c >= F) return 0;
  float dy[W], gate[W], up[W];
  dy_MF.Load(m * F + c, dy);
  gu_M2F.Load(2 * m * F + c, gate);
  gu_M2F.Load((2 * m + 1) * F + c, up);
#pragma unroll
  for (int e = 0; e < W; ++e) {
    const float g = gate[e], s = Sigmoid<kExact>(g), dys = dy[e] * s;
    gate[e] = dys * up[e] * (1.0f + g * (1.0f - s));
    up[e] = dys * g;
  }
  gu_M2F.Store(2 * m * F + c, gate);
  gu_M2F.Store((2 * m + 1) * F + c, up);
  return Larger(LargestStored(gu_M2F, gate), LargestStored(gu_M2F, up));
}

template <bool kExact, int W, bool kTakesLargest, typename A>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(A dy_MF, A gu_M2F, float* amax, int64_t F) {
  const uint32_t largest = Backward<kExact, W>(dy_MF, gu_M2F, F);
  if constexpr (kTakesLargest) RaiseByBlock(largest, amax);
}

// fn(exact, W, takes largest, TypeTag of the accessors, grid, block), the first three as types with
// a `value`.
template <typename Fn>
void Dispatch(const FloatArray& one, const FloatArray& other, const float* amax, int64_t M,
              int64_t F, Fn&& fn) {
  if (M == 0 || F == 0) return;
  const auto launch = [&](auto exact, auto width, auto array) {
    const int64_t threads = CeilDiv64(F, decltype(width)::value);
    const auto block =
        static_cast<unsigned>(threads < kThreads ? CeilDiv64(threads, 32) * 32 : kThreads);
    const dim3 grid(GridOf(M, 1), GridOf(threads, block));
    if (amax == nullptr) {
      fn(exact, width, Int<0>{}, array, grid, block);
    } else {
      fn(exact, width, Int<1>{}, array, grid, block);
    }
  };
  if (F % kVector != 0 || one.dtype != other.dtype || !Aligned(one.data) || !Aligned(other.data)) {
    launch(Int<1>{}, Int<1>{}, TypeTag<Runtime>{});
    return;
  }
  WithFloatType(one.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 4) {
      launch(Int<1>{}, Int<4>{}, TypeTag<Typed<T>>{});
    } else {
      launch(Int<0>{}, Int<8>{}, TypeTag<Typed<T>>{});
    }
  });
}

}  // namespace

void LaunchSwiGluForward(const FloatArray& gu_M2F, const FloatArray& y_MF, int64_t M, int64_t F,
                         cudaStream_t stream, float* amax) {
  Dispatch(gu_M2F, y_MF, amax, M, F,
           [&](auto exact, auto width, auto takes, auto array, dim3 grid, unsigned block) {
             using A = typename decltype(array)::type;
             ForwardKernel<decltype(exact)::value != 0, decltype(width)::value,
                           decltype(takes)::value != 0>
                 <<<grid, block, 0, stream>>>(A(gu_M2F), A(y_MF), amax, F);
           });
}

void LaunchSwiGluBackward(const FloatArray& dy_MF, const FloatArray& gu_M2F, int64_t M, int64_t F,
                          cudaStream_t stream, float* amax) {
  Dispatch(dy_MF, gu_M2F, amax, M, F,
           [&](auto exact, auto width, auto takes, auto array, dim3 grid, unsigned block) {
             using A = typename decltype(array)::type;
             BackwardKernel<decltype(exact)::value != 0, decltype(width)::value,
                            decltype(takes)::value != 0>
                 <<<grid, block, 0, stream>>>(A(dy_MF), A(gu_M2F), amax, F);
           });
}

}  // namespace zeroplan::cuda
