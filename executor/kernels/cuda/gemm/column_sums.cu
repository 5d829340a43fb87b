#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"

namespace zeroplan::cuda {
namespace {

constexpr int kLanes = 32;      // threads beside one another, W columns each
constexpr int kRowThreads = 8;  // threads below one another
constexpr int kUnroll = 4;      // rows of a thread in flight
// Wanted in all: what the multiprocessors hold at once, with 40 registers a thread.
constexpr int64_t kBlocks = 6 * kMultiprocessors;
constexpr int64_t kLeastRows = 64;  // of a part

// Part blockIdx.y sums rows [part * rows, ...) of kLanes * W columns: to partials[part][N], or,
// where there is one part, to out.
template <int W, typename X>
__global__ void __launch_bounds__(kLanes* kRowThreads)
    PartsKernel(X x_MN, int64_t M, int64_t N, int64_t rows, float* partials, Runtime out_N,
                bool add) {
  __shared__ float sums[kRowThreads][kLanes * W];
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x) * W;
  const int64_t begin = blockIdx.y * rows;
  const int64_t end = begin + rows < M ? begin + rows : M;
  float sum[W] = {};
  if (first < N) {
    int64_t m = begin + threadIdx.y;
    for (; m + (kUnroll - 1) * kRowThreads < end; m += kUnroll * kRowThreads) {
      float x[kUnroll][W];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) x_MN.Load((m + u * kRowThreads) * N + first, x[u]);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int e = 0; e < W; ++e) sum[e] += x[u][e];
      }
    }
    for (; m < end; m += kRowThreads) {
      float x[W];
      x_MN.Load(m * N + first, x);
#pragma unroll
      for (int e = 0; e < W; ++e) sum[e] += x[e];
    }
  }
#pragma unroll
  for (int e = 0; e < W; ++e) sums[threadIdx.y][e * kLanes + threadIdx.x] = sum[e];
  __syncthreads();
  if (threadIdx.y != 0 || first >= N) return;
#pragma unroll
  for (int e = 0; e < W; ++e) {
    float total = 0;
#pragma unroll
    for (int y = 0; y < kRowThreads; ++y) total += sums[y][e * kLanes + threadIdx.x];
    if (partials != nullptr) {
      partials[blockIdx.y * N + first + e] = total;
    } else {
      out_N.Set(first + e, add ? out_N.Get(first + e) + total : total);
    }
  }
}

constexpr int kPartThreads = 16;

// A block takes 32 columns of partials; thread y the parts y, y + 16, ...
__global__ void __launch_bounds__(32 * kPartThreads)
    AddPartialsKernel(const float* partials, int64_t parts, int64_t columns, int64_t N,
                      Runtime out_N, Runtime second_N, bool add) {
  __shared__ float sums[kPartThreads][32];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 8
    for (int64_t part = threadIdx.y; part < parts; part += kPartThreads) {
      sum += partials[part * columns + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  const Runtime to = column < N ? out_N : second_N;
  const int64_t at = column < N ? column : column - N;
  float total = add ? to.Get(at) : 0.0f;
#pragma unroll
  for (int y = 0; y < kPartThreads; ++y) total += sums[y][threadIdx.x];
  to.Set(at, total);
}

int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

int64_t WantedParts(int64_t M, int64_t N) {
  const int64_t tiles = CeilDiv64(N, kLanes * kVector);
  const int64_t parts = Least(kBlocks / tiles, CeilDiv64(M, kLeastRows));
  return parts < 1 ? 1 : parts;
}

}  // namespace

uint64_t ColumnSumsScratchBytes(int64_t M, int64_t N) {
  const int64_t parts = WantedParts(M, N);
  return parts == 1 ? 0 : static_cast<uint64_t>(parts * N) * sizeof(float);
}

void ColumnSums(const FloatArray& x_MN, int64_t M, int64_t N, const FloatArray& out_N, bool add,
                void* scratch, uint64_t scratch_bytes, cudaStream_t stream) {
  const auto room =
      scratch == nullptr ? 0 : static_cast<int64_t>(scratch_bytes / sizeof(float)) / N;
  int64_t parts = Least(WantedParts(M, N), room);
  if (parts < 2) parts = 1;
  const int64_t rows = CeilDiv64(M, parts);
  parts = rows == 0 ? 1 : CeilDiv64(M, rows);  // without empty parts
  auto* partials = parts > 1 ? static_cast<float*>(scratch) : nullptr;
  const dim3 block(kLanes, kRowThreads);
  if (N % kVector == 0 && Aligned(x_MN.data)) {
    const dim3 grid(GridOf(N, kLanes * kVector), static_cast<unsigned>(parts));
    WithFloatType(x_MN.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      PartsKernel<kVector>
          <<<grid, block, 0, stream>>>(Typed<T>(x_MN), M, N, rows, partials, Runtime(out_N), add);
    });
  } else {
    const dim3 grid(GridOf(N, kLanes), static_cast<unsigned>(parts));
    PartsKernel<1>
        <<<grid, block, 0, stream>>>(Runtime(x_MN), M, N, rows, partials, Runtime(out_N), add);
  }
  if (parts > 1) AddPartials(partials, parts, N, out_N, {}, add, stream);
}

void AddPartials(const float* partials, int64_t parts, int64_t N, const FloatArray& out_N,
                 const FloatArray& second_N, bool add, cudaStream_t stream) {
  const int64_t columns = second_N.data == nullptr ? N : 2 * N;
  AddPartialsKernel<<<GridOf(columns, 32), dim3(32, kPartThreads), 0, stream>>>(
      partials, parts, columns, N, Runtime(out_N), Runtime(second_N), add);
}

}  // namespace zeroplan::cuda
