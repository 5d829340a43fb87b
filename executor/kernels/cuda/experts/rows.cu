// Rows of experts: gathered from tokens' rows and summed to them, and their gated SwiGLU. Legend:
// core/program/expert_kernel_rows.inc's.
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/sigmoid.cuh"
#include "executor/kernels/cuda/experts/experts.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

// A block takes W columns a thread of token blockIdx.x.
template <int W, typename A>
__global__ void __launch_bounds__(kThreads)
    GatherKernel(A x_MC, const int32_t* places_Mk, A y_RC, int64_t C, int k) {
  const int64_t m = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  if (c >= C) return;
  float x[W];
  x_MC.Load(m * C + c, x);
  for (int j = 0; j < k; ++j) y_RC.Store(places_Mk[m * k + j] * C + c, x);
}

template <int W, typename A>
__global__ void __launch_bounds__(kThreads)
    SumKernel(A y_RC, const int32_t* places_Mk, A residual_MC, A x_MC, bool has_residual, bool add,
              int64_t C, int k) {
  const int64_t m = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  if (c >= C) return;
  float sum[W] = {}, v[W];
  const auto take = [&] {
#pragma unroll
    for (int e = 0; e < W; ++e) sum[e] += v[e];
  };
#pragma unroll 4
  for (int j = 0; j < k; ++j) {
    y_RC.Load(places_Mk[m * k + j] * C + c, v);
    take();
  }
  if (has_residual) {
    residual_MC.Load(m * C + c, v);
    take();
  }
  if (add) {
    x_MC.Load(m * C + c, v);
    take();
  }
  x_MC.Store(m * C + c, sum);
}

template <bool kExact, int W, typename A>
__global__ void __launch_bounds__(kThreads)
    GatedForwardKernel(A gu_R2F, const float* gates, const int32_t* order_R, A y_RF, int64_t F) {
  const int64_t r = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * W;
  if (c >= F) return;
  const float factor = gates[order_R == nullptr ? r : order_R[r]];
  float gate[W], up[W];
  gu_R2F.Load(2 * r * F + c, gate);
  gu_R2F.Load((2 * r + 1) * F + c, up);
#pragma unroll
  for (int e = 0; e < W; ++e) gate[e] *= Sigmoid<kExact>(gate[e]) * up[e] * factor;
  y_RF.Store(r * F + c, gate);
}

// A block a row: the gate's gradient is a sum over it.
template <bool kExact, int W, typename A, int kBlock>
__global__ void __launch_bounds__(kBlock)
    GatedBackwardKernel(A dy_RF, const float* gates, const int32_t* order_R, A gu_R2F,
                        float* dgates, int64_t F) {
  __shared__ float shared[kBlock / 32];
  const int64_t r = blockIdx.x, at = order_R == nullptr ? r : order_R[r];
  const float factor = gates[at];
  float sum = 0;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * W; c < F; c += kBlock * W) {
    float dy[W], gate[W], up[W];
    dy_RF.Load(r * F + c, dy);
    gu_R2F.Load(2 * r * F + c, gate);
    gu_R2F.Load((2 * r + 1) * F + c, up);
#pragma unroll
    for (int e = 0; e < W; ++e) {
      const float g = gate[e], s = Sigmoid<kExact>(g), dys = dy[e] * s;
      sum += dys * g * up[e];
      gate[e] = dys * factor * up[e] * (1.0f + g * (1.0f - s));
      up[e] = dys * factor * g;
    }
    gu_R2F.Store(2 * r * F + c, gate);
    gu_R2F.Store((2 * r + 1) * F + c, up);
  }
  sum = BlockSum<kBlock>(sum, shared);
  if (threadIdx.x == 0) dgates[at] = sum;
}

bool Fast(std::initializer_list<FloatArray> arrays, int64_t columns) {
  const FloatArray& first = *arrays.begin();
  bool fast = columns % kVector == 0;
  for (const FloatArray& array : arrays) {
    if (array.data == nullptr) continue;
    fast = fast && array.dtype == first.dtype && Aligned(array.data);
  }
  return fast;
}

// fn(exact, W, TypeTag of the accessors), the first two as types with a `value`.
template <typename Fn>
void Dispatch(std::initializer_list<FloatArray> arrays, int64_t columns, Fn&& fn) {
  if (!Fast(arrays, columns)) {
    fn(Int<1>{}, Int<1>{}, TypeTag<Runtime>{});
    return;
  }
  WithFloatType(arrays.begin()->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (sizeof(T) == 4) {
      fn(Int<1>{}, Int<4>{}, TypeTag<Typed<T>>{});
    } else {
      fn(Int<0>{}, Int<8>{}, TypeTag<Typed<T>>{});
    }
  });
}

struct Launch {
  dim3 grid;
  unsigned block;
};
Launch LaunchOf(int64_t rows, int64_t columns, int width) {
  const int64_t threads = CeilDiv64(columns, width);
  const auto block =
      static_cast<unsigned>(threads < kThreads ? CeilDiv64(threads, 32) * 32 : kThreads);
  return {dim3(GridOf(rows, 1), GridOf(threads, block)), block};
}

}  // namespace

void LaunchGatherRows(const FloatArray& x_MC, const int32_t* places_Mk, const FloatArray& y_RC,
                      int64_t M, int64_t C, int k, cudaStream_t stream) {
  if (M == 0 || C == 0) return;
  Dispatch({x_MC, y_RC}, C, [&](auto, auto width, auto array) {
    using A = typename decltype(array)::type;
    const Launch launch = LaunchOf(M, C, decltype(width)::value);
    GatherKernel<decltype(width)::value>
        <<<launch.grid, launch.block, 0, stream>>>(A(x_MC), places_Mk, A(y_RC), C, k);
  });
}

void LaunchSumRows(const FloatArray& y_RC, const int32_t* places_Mk, const FloatArray& residual_MC,
                   const FloatArray& x_MC, bool add, int64_t M, int64_t C, int k,
                   cudaStream_t stream) {
  if (M == 0 || C == 0) return;
  Dispatch({y_RC, residual_MC, x_MC}, C, [&](auto, auto width, auto array) {
    using A = typename decltype(array)::type;
    const Launch launch = LaunchOf(M, C, decltype(width)::value);
    SumKernel<decltype(width)::value><<<launch.grid, launch.block, 0, stream>>>(
        A(y_RC), places_Mk, A(residual_MC), A(x_MC), residual_MC.data != nullptr, add, C, k);
  });
}

void LaunchGatedSwiGluForward(const FloatArray& gu_R2F, const float* gates, const int32_t* order_R,
                              const FloatArray& y_RF, int64_t R, int64_t F, cudaStream_t stream) {
  if (R == 0 || F == 0) return;
  Dispatch({gu_R2F, y_RF}, F, [&](auto exact, auto width, auto array) {
    using A = typename decltype(array)::type;
    const Launch launch = LaunchOf(R, F, decltype(width)::value);
    GatedForwardKernel<decltype(exact)::value != 0, decltype(width)::value>
        <<<launch.grid, launch.block, 0, stream>>>(A(gu_R2F), gates, order_R, A(y_RF), F);
  });
}

void LaunchGatedSwiGluBackward(const FloatArray& dy_RF, const float* gates, const int32_t* order_R,
                               const FloatArray& gu_R2F, float* dgates, int64_t R, int64_t F,
                               cudaStream_t stream) {
  if (R == 0 || F == 0) return;
  Dispatch({dy_RF, gu_R2F}, F, [&](auto exact, auto width, auto array) {
    using A = typename decltype(array)::type;
    constexpr bool kExact = decltype(exact)::value != 0;
    constexpr int kWidth = decltype(width)::value;
    if (F <= 128 * kWidth) {
      GatedBackwardKernel<kExact, kWidth, A, 128>
          <<<GridOf(R, 1), 128, 0, stream>>>(A(dy_RF), gates, order_R, A(gu_R2F), dgates, F);
    } else {
      GatedBackwardKernel<kExact, kWidth, A, kThreads>
          <<<GridOf(R, 1), kThreads, 0, stream>>>(A(dy_RF), gates, order_R, A(gu_R2F), dgates, F);
    }
  });
}

}  // namespace zeroplan::cuda
