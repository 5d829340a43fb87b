#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/gelu.cuh"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// What becomes of a sum.
struct Finish {
  Runtime bias_N, residual_N, y_N, gelu_N;

  __host__ explicit Finish(const RowProduct& p)
      : bias_N(p.bias_N), residual_N(p.residual_N), y_N(p.y_N), gelu_N(p.gelu_N) {}

  __device__ void Store(int64_t n, float sum) const {
    if (bias_N.array.data != nullptr) sum += bias_N.Get(n);
    if (residual_N.array.data != nullptr) sum += residual_N.Get(n);
    y_N.Set(n, sum);
    if (gelu_N.array.data != nullptr) gelu_N.Set(n, Gelu<true>(sum));
  }
};

// Vectors that a thread has on their way from memory at once.
template <typename T>
constexpr int kInFlight = sizeof(T) == 2 ? 8 : 4;

// w_NK: a warp takes kRows rows of it, whose sums lie across its lanes.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads)
    RowsKernel(const T* a_K, const T* w_NK, Finish finish, int64_t K, int64_t N) {
  constexpr int kUnroll = kInFlight<T> / kRows;
  const int lane = threadIdx.x % 32;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32) * kRows;
  if (first >= N) return;
  const int64_t vectors = K / kVector;
  float sums[kRows] = {};
  for (int64_t begin = lane; begin < vectors; begin += 32 * kUnroll) {
    Pack<T, kVector> w[kUnroll][kRows];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (begin + 32 * u >= vectors || first + r >= N) continue;
        w[u][r] = LoadPack<T, kVector>(w_NK + (first + r) * K + (begin + 32 * u) * kVector);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (begin + 32 * u >= vectors) continue;
      float a[kVector];
      Widen(LoadPack<T, kVector>(a_K + (begin + 32 * u) * kVector), a);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (first + r >= N) continue;
        float x[kVector];
        Widen(w[u][r], x);
#pragma unroll
        for (int e = 0; e < kVector; ++e) sums[r] = fmaf(a[e], x[e], sums[r]);
      }
    }
  }
  float own = 0;  // lane r's: the sum of row r
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = WarpSum(sums[r]);
    if (lane == r) own = sum;
  }
  if (lane < kRows && first + lane < N) finish.Store(first + lane, own);
}

// w_KN: a block takes kLanes vectors of columns, and kDepth rows at a time.
constexpr int kLanes = 4;
constexpr int kDepth = kThreads / kLanes;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ColumnsKernel(const T* a_K, const T* w_KN, Finish finish, int64_t K, int64_t N) {
  constexpr int kUnroll = kInFlight<T>;
  __shared__ float shared[kWarps][kLanes * kVector];
  const int lane = threadIdx.x % kLanes, depth = threadIdx.x / kLanes;
  const int64_t block_column = static_cast<int64_t>(blockIdx.x) * kLanes * kVector;
  const int64_t column = block_column + lane * kVector;
  float sums[kVector] = {};
  if (column < N) {
    for (int64_t begin = depth; begin < K; begin += kDepth * kUnroll) {
      Pack<T, kVector> w[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t k = begin + kDepth * u;
        if (k < K) w[u] = LoadPack<T, kVector>(w_KN + k * N + column);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t k = begin + kDepth * u;
        if (k >= K) continue;
        const float a = ToFloat(a_K[k]);
        float x[kVector];
        Widen(w[u], x);
#pragma unroll
        for (int e = 0; e < kVector; ++e) sums[e] = fmaf(a, x[e], sums[e]);
      }
    }
  }
  // Over the rows of a warp, which are kLanes threads apart, then over the block's warps.
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
#pragma unroll
    for (int offset = 16; offset >= kLanes; offset /= 2) {
      sums[e] += __shfl_xor_sync(0xffffffffu, sums[e], offset);
    }
    if (threadIdx.x % 32 < kLanes) shared[threadIdx.x / 32][lane * kVector + e] = sums[e];
  }
  __syncthreads();
  const int64_t n = block_column + threadIdx.x;
  if (threadIdx.x >= kLanes * kVector || n >= N) return;
  float sum = shared[0][threadIdx.x];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sum += shared[warp][threadIdx.x];
  finish.Store(n, sum);
}

// Any sizes and dtypes: a warp an element.
__global__ void __launch_bounds__(kThreads)
    AnyKernel(Runtime a_K, Runtime w, Finish finish, int64_t K, int64_t N, bool transposed) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (n >= N) return;
  float sum = 0;
  for (int64_t k = threadIdx.x % 32; k < K; k += 32) {
    sum = fmaf(a_K.Get(k), w.Get(transposed ? n * K + k : k * N + n), sum);
  }
  sum = WarpSum(sum);
  if (threadIdx.x % 32 == 0) finish.Store(n, sum);
}

template <typename T, int kRows>
void LaunchRows(const RowProduct& p, cudaStream_t stream) {
  RowsKernel<T, kRows><<<GridOf(p.N, kWarps * kRows), kThreads, 0, stream>>>(
      static_cast<const T*>(p.a_K.data), static_cast<const T*>(p.w.data), Finish(p), p.K, p.N);
}

}  // namespace

void LaunchRowProduct(const RowProduct& p, cudaStream_t stream) {
  const int64_t row = p.transposed ? p.K : p.N;
  if (p.a_K.dtype != p.w.dtype || row % kVector != 0 || !Aligned(p.a_K.data) ||
      !Aligned(p.w.data)) {
    AnyKernel<<<GridOf(p.N, kWarps), kThreads, 0, stream>>>(Runtime(p.a_K), Runtime(p.w), Finish(p),
                                                            p.K, p.N, p.transposed);
    return;
  }
  WithFloatType(p.w.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (!p.transposed) {
      ColumnsKernel<T><<<GridOf(p.N, kLanes * kVector), kThreads, 0, stream>>>(
          static_cast<const T*>(p.a_K.data), static_cast<const T*>(p.w.data), Finish(p), p.K, p.N);
    } else if (p.N >= 16384) {  // several rows share what is read of a, where enough warps are left
      LaunchRows<T, 4>(p, stream);
    } else if (p.N >= 8192) {
      LaunchRows<T, 2>(p, stream);
    } else {
      LaunchRows<T, 1>(p, stream);
    }
  });
}

}  // namespace zeroplan::cuda
