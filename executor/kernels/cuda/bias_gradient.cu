// Two launches: blocks sum a strip of columns over a chunk of rows into scratch; then each column's
// chunks are added up. Legend: M rows, N columns, S chunks.
#include "executor/kernels/cuda/bias_gradient.h"

#include <algorithm>

#include "executor/kernels/cuda/gemm_element.cuh"

namespace zeroplan::cuda {
namespace {

using namespace gemm_element;

constexpr int kLanes = 32;       // threads of a block side by side on columns
constexpr int kRowThreads = 8;   // and below one another on rows
constexpr int kChunkThreads = 32;
// Enough blocks for a large GPU: eight for each of 132 multiprocessors.
constexpr int64_t kBlocks = 1056;
constexpr int64_t kLeastRows = 32;  // of a chunk

// partial_SN: row blockIdx.y gets the sums over this chunk's rows. N is a multiple of V.
template <typename T, int V>
__global__ void __launch_bounds__(kLanes* kRowThreads)
    SumChunk(const T* dy_MN, int64_t M, int64_t N, int64_t chunk_rows, float* partial_SN) {
  __shared__ float tile[kRowThreads][kLanes * V];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x) * V;
  const int64_t begin = blockIdx.y * chunk_rows, end = min(begin + chunk_rows, M);
  float sum[V] = {};
  if (column < N) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kRowThreads) {
      const auto x = *reinterpret_cast<const Pack<T, V>*>(dy_MN + row * N + column);
#pragma unroll
      for (int i = 0; i < V; ++i) sum[i] += ToFloat(x.x[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) tile[threadIdx.y][threadIdx.x * V + i] = sum[i];
  __syncthreads();
  // One thread a column; strips have more columns than a row of threads where V > 1.
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  for (int i = thread; i < kLanes * V; i += kLanes * kRowThreads) {
    const int64_t to = static_cast<int64_t>(blockIdx.x) * kLanes * V + i;
    if (to >= N) continue;
    float total = 0;
#pragma unroll
    for (int r = 0; r < kRowThreads; ++r) total += tile[r][i];
    partial_SN[blockIdx.y * N + to] = total;
  }
}

template <typename T>
__global__ void __launch_bounds__(kLanes* kChunkThreads)
    SumChunks(const float* partial_SN, int64_t S, int64_t N, T* db_N, bool accumulate) {
  __shared__ float tile[kChunkThreads][kLanes];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  float sum = 0;
  if (column < N) {
    for (int64_t s = threadIdx.y; s < S; s += kChunkThreads) sum += partial_SN[s * N + column];
  }
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= N) return;
  float total = 0;
  for (int r = 0; r < kChunkThreads; ++r) total += tile[r][threadIdx.x];
  if (accumulate) total += ToFloat(db_N[column]);
  db_N[column] = FromFloat<T>(total);
}

template <typename T>
__global__ void __launch_bounds__(256) Add(const T* src, T* dst, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < n) dst[i] = FromFloat<T>(ToFloat(dst[i]) + ToFloat(src[i]));
}

// Returns the number of chunks.
template <typename T, int V>
int64_t LaunchChunks(const T* dy_MN, int64_t M, int64_t N, float* partial_SN,
                     uint64_t scratch_bytes, cudaStream_t stream) {
  const int64_t strips = (N + kLanes * V - 1) / (kLanes * V);
  const auto fits = static_cast<int64_t>(scratch_bytes / ColumnSumsScratch(N));
  const int64_t most = std::min({kBlocks / strips, (M + kLeastRows - 1) / kLeastRows, fits});
  const int64_t rows = (M + std::max<int64_t>(most, 1) - 1) / std::max<int64_t>(most, 1);
  const int64_t chunks = (M + rows - 1) / rows;
  const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(chunks));
  SumChunk<T, V><<<grid, dim3(kLanes, kRowThreads), 0, stream>>>(dy_MN, M, N, rows, partial_SN);
  return chunks;
}

}  // namespace

void ColumnSums(const void* dy_MN, Dtype dy_dtype, int64_t M, int64_t N, void* db_N,
                Dtype db_dtype, bool accumulate, void* scratch, uint64_t scratch_bytes,
                cudaStream_t stream) {
  auto* partial_SN = static_cast<float*>(scratch);
  int64_t chunks = 0;
  WithFloatType(dy_dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* dy = static_cast<const T*>(dy_MN);
    constexpr int V = kPackSize<T>;
    chunks = N % V == 0 && Aligned16(dy)
                 ? LaunchChunks<T, V>(dy, M, N, partial_SN, scratch_bytes, stream)
                 : LaunchChunks<T, 1>(dy, M, N, partial_SN, scratch_bytes, stream);
  });
  WithFloatType(db_dtype, [&](auto zero) {
    using T = decltype(zero);
    SumChunks<T><<<static_cast<unsigned>((N + kLanes - 1) / kLanes), dim3(kLanes, kChunkThreads),
                   0, stream>>>(partial_SN, chunks, N, static_cast<T*>(db_N), accumulate);
  });
}

void AddVector(const void* src_n, void* dst_n, Dtype dtype, int64_t n, cudaStream_t stream) {
  WithFloatType(dtype, [&](auto zero) {
    using T = decltype(zero);
    Add<T><<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream>>>(
        static_cast<const T*>(src_n), static_cast<T*>(dst_n), n);
  });
}

}  // namespace zeroplan::cuda
