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

// Thread i has element i of the narrow side.
__global__ void __launch_bounds__(kThreads)
    SwapColumnsKernel(const int32_t* columns_n, Runtime narrow_Rn, Runtime wide_RVp, int64_t Rn,
                      int64_t n, int64_t Vp) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= Rn) return;
  const int64_t column = columns_n[i % n];
  if (column < 0) return;
  if (column >= Vp) FailIndex("column", column, i, Vp);
  const int64_t wide = i / n * Vp + column;
  const float value = narrow_Rn.Get(i);
  narrow_Rn.Set(i, wide_RVp.Get(wide));
  wide_RVp.Set(wide, value);
}

}  // namespace

void LaunchEmbedRows(const int32_t* places_M, const int32_t* starts_M, const FloatArray& rows_nC,
                     const FloatArray& wpe_TC, const FloatArray& x_MC, int64_t M, int64_t T,
                     int64_t C, int64_t n, cudaStream_t stream) {
  EmbedRowsKernel<<<GridOf(M, 1), kThreads, 0, stream>>>(places_M, starts_M, Runtime(rows_nC),
                                                         Runtime(wpe_TC), wpe_TC.data != nullptr,
                                                         Runtime(x_MC), T, C, n);
}

void LaunchSwapColumns(const int32_t* columns_n, const FloatArray& narrow_Rn,
                       const FloatArray& wide_RVp, int64_t R, int64_t n, int64_t Vp,
                       cudaStream_t stream) {
  SwapColumnsKernel<<<GridOf(R * n, kThreads), kThreads, 0, stream>>>(
      columns_n, Runtime(narrow_Rn), Runtime(wide_RVp), R * n, n, Vp);
}

}  // namespace zeroplan::cuda
