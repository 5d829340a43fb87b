// Few positions and few columns are touched, so each thread has one element.
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/embedding/token_rows.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

// A block has one position.
__global__ void __launch_bounds__(kThreads)
    EmbedRowsKernel(const int32_t* places_M, const int32_t* starts_M, Runtime rows_nC, Runtime wpe,
                    bool has_wpe, Runtime x_MC, int64_t T, int64_t C, int64_t n) {
  const int64_t m = blockIdx.x;
  const int64_t place = places_M[m];
  if (place >= n) return;
  if (place < 0) FailIndex("row of a token", place, m, n);
  const int64_t t = starts_M == nullptr ? m % T : m % T - starts_M[m];
  for (int64_t c = threadIdx.x; c < C; c += kThreads) {
    float x = rows_nC.Get(place * C + c);
    if (has_wpe) x += wpe.Get(t * C + c);
    x_MC.Set(m * C + c, x);
  }
}

// Thread i has element i of the R x n side.
__global__ void __launch_bounds__(kThreads)
    PutColumnsKernel(Runtime src_Rn, const int32_t* columns_n, Runtime dst_RVp, int64_t Rn,
                     int64_t n, int64_t Vp) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= Rn) return;
  const int64_t column = columns_n[i % n];
  if (column < 0) return;
  if (column >= Vp) FailIndex("column", column, i, Vp);
  dst_RVp.Set(i / n * Vp + column, src_Rn.Get(i));
}

__global__ void __launch_bounds__(kThreads)
    TakeColumnsKernel(Runtime src_RVp, const int32_t* columns_n, Runtime dst_Rn, int64_t Rn,
                      int64_t n, int64_t Vp) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= Rn) return;
  const int64_t column = columns_n[i % n];
  if (column >= Vp) FailIndex("column", column, i, Vp);
  const int64_t from = i / n * Vp + column;
  dst_Rn.Set(i, column < 0 ? 0.0f : src_RVp.Get(from));
  if (column >= 0) src_RVp.Set(from, 0.0f);
}

}  // namespace

void LaunchEmbedRows(const int32_t* places_M, const int32_t* starts_M, const FloatArray& rows_nC,
                     const FloatArray& wpe_TC, const FloatArray& x_MC, int64_t M, int64_t T,
                     int64_t C, int64_t n, cudaStream_t stream) {
  EmbedRowsKernel<<<GridOf(M, 1), kThreads, 0, stream>>>(places_M, starts_M, Runtime(rows_nC),
                                                         Runtime(wpe_TC), wpe_TC.data != nullptr,
                                                         Runtime(x_MC), T, C, n);
}

void LaunchPutColumns(const FloatArray& src_Rn, const int32_t* columns_n, const FloatArray& dst_RVp,
                      int64_t R, int64_t n, int64_t Vp, cudaStream_t stream) {
  PutColumnsKernel<<<GridOf(R * n, kThreads), kThreads, 0, stream>>>(
      Runtime(src_Rn), columns_n, Runtime(dst_RVp), R * n, n, Vp);
}

void LaunchTakeColumns(const FloatArray& src_RVp, const int32_t* columns_n,
                       const FloatArray& dst_Rn, int64_t R, int64_t n, int64_t Vp,
                       cudaStream_t stream) {
  TakeColumnsKernel<<<GridOf(R * n, kThreads), kThreads, 0, stream>>>(
      Runtime(src_RVp), columns_n, Runtime(dst_Rn), R * n, n, Vp);
}

}  // namespace zeroplan::cuda
