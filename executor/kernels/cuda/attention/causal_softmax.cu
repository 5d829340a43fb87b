#include <cfloat>

#include "executor/kernels/cuda/attention/attention_kernels.h"
#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda {
namespace {

constexpr int kWarps = 4;  // a warp a row; a row's second reading comes from the caches

template <int W, typename Scores>
__global__ void __launch_bounds__(32 * kWarps)
    SoftmaxKernel(Scores scores, RowBorders borders, int64_t rows, int64_t T, float scale) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (r >= rows) return;
  const int64_t visible = r % T + 1, row = r * T, first = borders.First(r, T);
  const int64_t first_pack = first / W * W;  // zeros before it
  const auto sees = [&](int64_t k) { return k >= first && k < visible; };
  const int lane = threadIdx.x % 32;
  float max = -FLT_MAX, sum = 0;
  for (int64_t k = first_pack + lane * W; k < visible; k += 32 * W) {
    float x[W];
    scores.Load(row + k, x);  // W divides T: within the row
    float most = max;
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (sees(k + e)) most = fmaxf(most, x[e] * scale);
    }
    sum *= __expf(max - most);
    max = most;
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (sees(k + e)) sum += __expf(x[e] * scale - most);
    }
  }
  const float row_max = WarpMax(max);
  const float inverse = 1.0f / WarpSum(sum * __expf(max - row_max));
  for (int64_t k = lane * W; k < T; k += 32 * W) {
    float p[W] = {};
    if (k >= first_pack && k < visible) {
      scores.Load(row + k, p);
#pragma unroll
      for (int e = 0; e < W; ++e) {
        p[e] = sees(k + e) ? __expf(p[e] * scale - row_max) * inverse : 0.0f;
      }
    }
    scores.Store(row + k, p);
  }
}

template <int W, typename Array>
__global__ void __launch_bounds__(32 * kWarps)
    BackwardKernel(Array probs, Array dprobs, int64_t rows, int64_t T, float scale) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (r >= rows) return;
  const int64_t visible = r % T + 1, row = r * T;
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t k = lane * W; k < visible; k += 32 * W) {
    float p[W], d[W];
    probs.Load(row + k, p);
    dprobs.Load(row + k, d);
#pragma unroll
    for (int e = 0; e < W; ++e) {
      if (k + e < visible) sum += p[e] * d[e];
    }
  }
  sum = WarpSum(sum);
  for (int64_t k = lane * W; k < T; k += 32 * W) {
    float ds[W] = {};
    if (k < visible) {
      float p[W];
      probs.Load(row + k, p);
      dprobs.Load(row + k, ds);
#pragma unroll
      for (int e = 0; e < W; ++e) {
        ds[e] = k + e < visible ? p[e] * (ds[e] - sum) * scale : 0.0f;
      }
    }
    dprobs.Store(row + k, ds);
  }
}

}  // namespace

void LaunchCausalSoftmax(const FloatArray& scores, const RowBorders& borders, int64_t rows,
                         int64_t T, float scale, cudaStream_t stream) {
  const unsigned grid = GridOf(rows, kWarps);
  if (T % kVector != 0 || !Aligned(scores.data)) {
    SoftmaxKernel<1><<<grid, 32 * kWarps, 0, stream>>>(Runtime(scores), borders, rows, T, scale);
    return;
  }
  WithFloatType(scores.dtype, [&](auto tag) {
    using A = Typed<typename decltype(tag)::type>;
    SoftmaxKernel<kVector><<<grid, 32 * kWarps, 0, stream>>>(A(scores), borders, rows, T, scale);
  });
}

void LaunchCausalSoftmaxBackward(const FloatArray& probs, const FloatArray& dprobs, int64_t rows,
                                 int64_t T, float scale, cudaStream_t stream) {
  const unsigned grid = GridOf(rows, kWarps);
  if (T % kVector != 0 || probs.dtype != dprobs.dtype || !Aligned(probs.data) ||
      !Aligned(dprobs.data)) {
    BackwardKernel<1>
        <<<grid, 32 * kWarps, 0, stream>>>(Runtime(probs), Runtime(dprobs), rows, T, scale);
    return;
  }
  WithFloatType(probs.dtype, [&](auto tag) {
    using A = Typed<typename decltype(tag)::type>;
    BackwardKernel<kVector><<<grid, 32 * kWarps, 0, stream>>>(A(probs), A(dprobs), rows, T, scale);
  });
}

}  // namespace zeroplan::cuda
