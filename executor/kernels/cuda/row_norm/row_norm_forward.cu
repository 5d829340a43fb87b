#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/magnitude.cuh"
#include "executor/kernels/cuda/row_norm/row_norm.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

template <RowNorm kNorm>
__device__ inline void StoreStats(float* stats, int64_t m, float mean, float rstd) {
  if constexpr (kNorm == RowNorm::kLayer) {
    stats[2 * m] = mean;
    stats[2 * m + 1] = rstd;
  } else {
    stats[m] = rstd;
  }
}

// A row is kept in registers, kVecs vectors a thread, by a warp or by a whole block: read once, and
// layer norm's variance comes from differences to the mean. Returns the largest magnitude in y.
template <RowNorm kNorm, typename T, int kVecs, bool kBlockPerRow>
__device__ inline uint32_t ForwardRow(const T* x_MC, const T* w_C, const T* b_C, T* y_MC,
                                      float* stats, int64_t M, int C, float eps) {
  __shared__ float shared[2][kThreads / 32];
  constexpr int kLanes = kBlockPerRow ? kThreads : 32;
  const int lane = kBlockPerRow ? threadIdx.x : threadIdx.x % 32;
  const int64_t m = kBlockPerRow
                        ? blockIdx.x
                        : static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (m >= M) return 0;  // whole warps, and never part of a block that synchronises
  const int vecs = C / kVector;
  const T* x_C = x_MC + m * C;
  const auto row_sum = [&](float sum, int place) {
    if constexpr (kBlockPerRow) {
      return BlockSum<kThreads>(sum, shared[place]);
    } else {
      return WarpSum(sum);
    }
  };

  Pack<T, kVector> x[kVecs];
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int v = lane + k * kLanes;
    if (v < vecs) x[k] = LoadPack<T, kVector>(x_C + v * kVector);
  }
  float mean = 0;
  if constexpr (kNorm == RowNorm::kLayer) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kVecs; ++k) {
      if (lane + k * kLanes >= vecs) continue;
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum += ToFloat(x[k].v[e]);
    }
    mean = row_sum(sum, 0) / static_cast<float>(C);
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    if (lane + k * kLanes >= vecs) continue;
    KeepPacked(x[k]);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float d = ToFloat(x[k].v[e]) - mean;
      squares += d * d;
    }
  }
  const float rstd = 1.0f / sqrtf(row_sum(squares, 1) / static_cast<float>(C) + eps);
  T* y_C = y_MC + m * C;
  uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < kVecs; ++k) {
    const int v = lane + k * kLanes;
    if (v >= vecs) continue;
    KeepPacked(x[k]);
    const Pack<T, kVector> w = LoadPack<T, kVector>(w_C + v * kVector);
    Pack<T, kVector> b, y;
    if constexpr (kNorm == RowNorm::kLayer) b = LoadPack<T, kVector>(b_C + v * kVector);
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      const float normal = (ToFloat(x[k].v[e]) - mean) * rstd;
      if constexpr (kNorm == RowNorm::kLayer) {
        y.v[e] = FromFloat<T>(normal * ToFloat(w.v[e]) + ToFloat(b.v[e]));
      } else {
        y.v[e] = FromFloat<T>(normal * ToFloat(w.v[e]));
      }
    }
    *reinterpret_cast<Pack<T, kVector>*>(y_C + v * kVector) = y;
    largest = Larger(largest, LargestOf(y));
  }
  if (lane == 0) StoreStats<kNorm>(stats, m, mean, rstd);
  return largest;
}

template <RowNorm kNorm, typename T, int kVecs, bool kBlockPerRow, bool kTakesLargest>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? (kVecs <= 4 ? 5 : 4) : 2)
    ForwardKernel(const T* x_MC, const T* w_C, const T* b_C, T* y_MC, float* stats, float* amax,
                  int64_t M, int C, float eps) {
  const uint32_t largest =
      ForwardRow<kNorm, T, kVecs, kBlockPerRow>(x_MC, w_C, b_C, y_MC, stats, M, C, eps);
  if constexpr (kTakesLargest) RaiseByBlock(largest, amax);
}

// Any C and dtypes: a block a row, which is read two or three times.
template <RowNorm kNorm>
__global__ void __launch_bounds__(kThreads)
    AnyForwardKernel(Runtime x_MC, Runtime w_C, Runtime b_C, Runtime y_MC, float* stats,
                     float* amax, int64_t C, float eps) {
  __shared__ float shared[2][kThreads / 32];
  const int64_t m = blockIdx.x;
  float mean = 0;
  if constexpr (kNorm == RowNorm::kLayer) {
    float sum = 0;
    for (int64_t c = threadIdx.x; c < C; c += kThreads) sum += x_MC.Get(m * C + c);
    mean = BlockSum<kThreads>(sum, shared[0]) / static_cast<float>(C);
  }
  float squares = 0;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    const float d = x_MC.Get(m * C + c) - mean;
    squares += d * d;
  }
  squares = BlockSum<kThreads>(squares, shared[1]);
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(C) + eps);
  uint32_t largest = 0;
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    const float y = (x_MC.Get(m * C + c) - mean) * rstd * w_C.Get(c);
    const float to[1] = {kNorm == RowNorm::kLayer ? y + b_C.Get(c) : y};
    y_MC.Store(m * C + c, to);
    largest = Larger(largest, LargestStored(y_MC, to));
  }
  if (threadIdx.x == 0) StoreStats<kNorm>(stats, m, mean, rstd);
  if (amax != nullptr) RaiseByBlock(largest, amax);
}

template <RowNorm kNorm>
struct Launch {
  const RowNormForward& call;
  cudaStream_t stream;

  template <typename T, int kVecs, bool kBlockPerRow>
  void Run() const {
    const int64_t M = call.M;
    const unsigned grid = GridOf(M, kBlockPerRow ? 1 : kThreads / 32);
    const auto launch = [&](auto kernel) {
      kernel<<<grid, kThreads, 0, stream>>>(
          static_cast<const T*>(call.x_MC.data), static_cast<const T*>(call.w_C.data),
          static_cast<const T*>(call.b_C.data), static_cast<T*>(call.y_MC.data), call.stats,
          call.amax, M, static_cast<int>(call.C), call.eps);
    };
    call.amax == nullptr ? launch(ForwardKernel<kNorm, T, kVecs, kBlockPerRow, false>)
                         : launch(ForwardKernel<kNorm, T, kVecs, kBlockPerRow, true>);
  }

  void RunAny() const {
    AnyForwardKernel<kNorm><<<GridOf(call.M, 1), kThreads, 0, stream>>>(
        Runtime(call.x_MC), Runtime(call.w_C), Runtime(call.b_C), Runtime(call.y_MC), call.stats,
        call.amax, call.C, call.eps);
  }

  void Choose() const {
    const auto fits = [&](const FloatArray& array) {
      return Aligned(array.data) && (array.data == nullptr || array.dtype == call.x_MC.dtype);
    };
    const int64_t vecs = call.C / kVector;
    if (call.C % kVector != 0 || vecs > 8 * kThreads || !fits(call.x_MC) || !fits(call.w_C) ||
        !fits(call.b_C) || !fits(call.y_MC)) {
      RunAny();
      return;
    }
    WithFloatType(call.x_MC.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if (vecs <= 32) {
        Run<T, 1, false>();
      } else if (vecs <= 2 * 32) {
        Run<T, 2, false>();
      } else if (vecs <= 3 * 32) {
        Run<T, 3, false>();
      } else if (vecs <= 4 * 32) {
        Run<T, 4, false>();
      } else if (vecs <= 8 * 32) {
        Run<T, 8, false>();
      } else if (vecs <= 2 * kThreads) {
        Run<T, 2, true>();
      } else if (vecs <= 4 * kThreads) {
        Run<T, 4, true>();
      } else {
        Run<T, 8, true>();
      }
    });
  }
};

}  // namespace

void LaunchRowNormForward(const RowNormForward& call, cudaStream_t stream) {
  if (call.norm == RowNorm::kLayer) {
    Launch<RowNorm::kLayer>{call, stream}.Choose();
  } else {
    Launch<RowNorm::kRms>{call, stream}.Choose();
  }
}

}  // namespace zeroplan::cuda
