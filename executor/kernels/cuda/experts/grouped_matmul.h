// Launchers of grouped matmuls, for mixtures of experts: rows in the order of their experts, times
// the matrix of each row's expert. Legend: R rows, E experts, N features out and K features in of
// an expert's matrix, which lies as torch.nn.Linear has it.
//
// Each of the three matmuls exists twice. The Hopper kernels take 16-bit operands on GPUs of
// compute capability 9.0 and use its matrix instructions (wgmma) and copy engine (TMA); the plain
// ones take every float dtype, size and GPU from 7.0 on, and those of 16 bit use mma.sync from 8.0
// on.
//
// All sum in fp32 in an order that depends on the sizes and borders alone, and round once. They
// write no byte outside their results, and what the rows of one expert hold, infinities and NaN
// too, reaches no result of another. The host never reads the borders.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/base/dtype.h"
#include "executor/kernels/cuda/float_array.h"

namespace zeroplan::cuda {

// Expert e owns the rows [starts[e], starts[e + 1]). On the device: E + 1 ascending numbers, the
// first 0, the last R. An expert may own no row, or all.
struct GroupedMatmul {
  int64_t R = 0, K = 0, N = 0, E = 0;
  const int32_t* starts_E1 = nullptr;
};

// Scratch that the Hopper kernels need, at a multiple of 4 bytes: the number of the next tile. It
// need not be cleared.
constexpr uint64_t GroupedScratchBytes() { return 16; }

// The most experts that the Hopper kernels take.
inline constexpr int64_t kMostHopperExperts = 512;

// Whether the Hopper kernels support it. `dtype` is that of all operands and of the results of the
// forward product and the data gradient, `gradient` that of the weight gradient: the same or fp32.
// `compute_capability` as 10 * major + minor. Pointers that the kernels get must be multiples of
// 16.
bool TakesHopperGroups(const GroupedMatmul& product, Dtype dtype, Dtype gradient,
                       int compute_capability);

// y_RN = a_RK * w_e^T in each expert's rows. REQUIRES: TakesHopperGroups. Returns the
// runtime's result of the launch.
cudaError_t LaunchHopperGroupedForward(const GroupedMatmul& product, Dtype dtype, const void* a_RK,
                                       const void* w_ENK, void* y_RN, void* scratch,
                                       cudaStream_t stream);
// dx_RK = dy_RN * w_e in each expert's rows. As above.
cudaError_t LaunchHopperGroupedData(const GroupedMatmul& product, Dtype dtype, const void* dy_RN,
                                    const void* w_ENK, void* dx_RK, void* scratch,
                                    cudaStream_t stream);
// dw_e = dy^T * a over each expert's rows: zeros for an expert without rows. `accumulate`: dw_e +=
// it. As above.
cudaError_t LaunchHopperGroupedWeight(const GroupedMatmul& product, Dtype dtype, const void* dy_RN,
                                      const void* a_RK, const FloatArray& dw_ENK, bool accumulate,
                                      void* scratch, cudaStream_t stream);

// The same of any dtypes, also mixed, and any sizes. `compute_capability` chooses between kernels;
// results of other choices differ by the order of their sums. R < 2^31.
cudaError_t LaunchPlainGroupedForward(const GroupedMatmul& product, const FloatArray& a_RK,
                                      const FloatArray& w_ENK, const FloatArray& y_RN,
                                      int compute_capability, cudaStream_t stream);
cudaError_t LaunchPlainGroupedData(const GroupedMatmul& product, const FloatArray& dy_RN,
                                   const FloatArray& w_ENK, const FloatArray& dx_RK,
                                   int compute_capability, cudaStream_t stream);
cudaError_t LaunchPlainGroupedWeight(const GroupedMatmul& product, const FloatArray& dy_RN,
                                     const FloatArray& a_RK, const FloatArray& dw_ENK,
                                     bool accumulate, int compute_capability, cudaStream_t stream);

}  // namespace zeroplan::cuda
