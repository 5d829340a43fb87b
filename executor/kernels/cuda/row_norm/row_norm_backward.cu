// The launch of the kernel for rows of pieces, the kernel for all others, and the end of both: the
// blocks' partial sums of dw and db.
#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "executor/kernels/cuda/magnitude.cuh"
#include "executor/kernels/cuda/row_norm/row_norm.h"
#include "executor/kernels/cuda/row_norm/row_norm_backward_rows.cuh"

namespace zeroplan::cuda {
namespace {

using namespace row_norm_backward;

constexpr int kAnyThreads = 256;

// Any C and dtypes: a block a row at a time, sums of dw and db in its partials in memory, where
// each thread has columns of its own.
template <RowNorm kNorm>
__global__ void __launch_bounds__(kAnyThreads)
    AnyBackwardKernel(Runtime dy_MC, Runtime x_MC, Runtime w_C, const float* stats, Runtime dx_MC,
                      float* partials, float* amax, int64_t M, int64_t C, bool add_to_dx) {
  constexpr bool kLayer = kNorm == RowNorm::kLayer;
  __shared__ float shared[2][kAnyThreads / 32];
  float* dw_C = partials + static_cast<int64_t>(blockIdx.x) * kWeightSums<kNorm> * C;
  float* db_C = dw_C + C;
  for (int64_t c = threadIdx.x; c < C; c += kAnyThreads) {
    dw_C[c] = 0;
    if constexpr (kLayer) db_C[c] = 0;
  }
  uint32_t largest = 0;
  for (int64_t m = blockIdx.x; m < M; m += gridDim.x) {
    const float mean = kLayer ? stats[2 * m] : 0, rstd = kLayer ? stats[2 * m + 1] : stats[m];
    float sum_d = 0, sum_dn = 0;
    for (int64_t c = threadIdx.x; c < C; c += kAnyThreads) {
      const float g = dy_MC.Get(m * C + c), n = (x_MC.Get(m * C + c) - mean) * rstd;
      const float d = g * w_C.Get(c);
      sum_d += d;
      sum_dn += d * n;
      dw_C[c] += g * n;
      if constexpr (kLayer) db_C[c] += g;
    }
    __syncthreads();  // the last row's sums have been read
    float mean_d = 0;
    if constexpr (kLayer) {
      mean_d = BlockSum<kAnyThreads>(sum_d, shared[0]) / static_cast<float>(C);
    }
    const float mean_dn = BlockSum<kAnyThreads>(sum_dn, shared[1]) / static_cast<float>(C);
    for (int64_t c = threadIdx.x; c < C; c += kAnyThreads) {
      const float n = (x_MC.Get(m * C + c) - mean) * rstd;
      const float d = dy_MC.Get(m * C + c) * w_C.Get(c);
      const float dx = (d - mean_d - n * mean_dn) * rstd;
      const float to[1] = {add_to_dx ? dx_MC.Get(m * C + c) + dx : dx};
      dx_MC.Store(m * C + c, to);
      largest = Larger(largest, LargestStored(dx_MC, to));
    }
  }
  if (amax != nullptr) RaiseByWarp(largest, amax);
}

// Bytes of shared memory that each of so many blocks on a multiprocessor may ask for beside those
// that RowsKernel always has.
int64_t RingRoom(int blocks) {
  int device = 0, all = 0, reserved = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device);
  return all / blocks - reserved - static_cast<int64_t>(2 * kMostWarps * kMostSums * sizeof(float));
}

template <RowNorm kNorm>
struct Launch {
  const RowNormBackward& call;
  cudaStream_t stream;

  // False: fewer than so many turns' rows fit into shared memory.
  template <typename T, int kElements, int kRows>
  bool Run(int64_t blocks, int64_t least_stages) const {
    const int64_t C = call.C;
    const int64_t row_threads = CeilDiv64(C, kElements * 32) * 32;
    int64_t groups = kMaxThreads<kNorm, T, kElements> / row_threads;
    if (row_threads > 32 && groups > kMostSyncedGroups) groups = kMostSyncedGroups;
    // At least 8 * C bytes where groups > 1: what their sums need.
    const int64_t slots =
        groups * kRows * (call.add_to_dx ? 3 : 2) * C * static_cast<int64_t>(sizeof(T));
    int64_t stages = RingRoom(kBlocksTogether<kElements>) / slots;
    if (stages < least_stages) return false;
    if (stages > kMaxStages) stages = kMaxStages;
    const auto kernel = call.amax == nullptr ? RowsKernel<kNorm, T, kElements, kRows, false>
                                             : RowsKernel<kNorm, T, kElements, kRows, true>;
    const auto ring = static_cast<int>(stages * slots);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ring);
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
    const dim3 block(static_cast<unsigned>(row_threads), static_cast<unsigned>(groups));
    const Inputs<T> in{static_cast<const T*>(call.dy_MC.data),
                       static_cast<const T*>(call.x_MC.data), static_cast<const T*>(call.w_C.data),
                       call.stats};
    kernel<<<static_cast<unsigned>(blocks), block, static_cast<size_t>(ring), stream>>>(
        in, static_cast<T*>(call.dx_MC.data), call.partials, call.amax, static_cast<int>(call.M),
        static_cast<int>(C), static_cast<int>(stages), call.add_to_dx);
    return true;
  }

  template <typename T>
  bool RunFor(int64_t blocks) const {
    if (call.C <= kMostColumns<8>) {
      constexpr int kRows = kRowsTogether<kNorm, T, 8>, kFewer = kRows > 2 ? kRows / 2 : kRows;
      return Run<T, 8, kRows>(blocks, 2) || Run<T, 8, kFewer>(blocks, 1);
    }
    if (call.C <= kMostColumns<16>) return Run<T, 16, kRowsTogether<kNorm, T, 16>>(blocks, 1);
    if (call.C <= kMostColumns<24>) return Run<T, 24, 1>(blocks, 1);
    if constexpr (kNorm == RowNorm::kRms) {
      if (call.C <= kMostColumns<32>) return Run<T, 32, 1>(blocks, 1);
    }
    return false;
  }

  bool FitsRows() const {
    const Dtype dtype = call.dy_MC.dtype;
    const auto fits = [&](const FloatArray& array) {
      return Aligned(array.data) && array.dtype == dtype;
    };
    return call.C % static_cast<int64_t>(16 / DtypeBytes(dtype)) == 0 && call.M <= kMostRows &&
           fits(call.dy_MC) && fits(call.x_MC) && fits(call.w_C) && fits(call.dx_MC) &&
           Aligned(call.stats) && Aligned(call.partials);
  }

  void Choose() const {
    const int64_t most_blocks = NormBackwardBlocks(call.M);
    // Past 8 elements a thread a multiprocessor has room for one block.
    int64_t blocks = most_blocks;
    if (call.C > kMostColumns<8> && blocks > kMultiprocessors) blocks = kMultiprocessors;
    bool done = false;
    if (FitsRows()) {
      WithFloatType(call.dy_MC.dtype,
                    [&](auto tag) { done = RunFor<typename decltype(tag)::type>(blocks); });
    }
    if (!done) {
      blocks = most_blocks;
      AnyBackwardKernel<kNorm><<<static_cast<unsigned>(blocks), kAnyThreads, 0, stream>>>(
          Runtime(call.dy_MC), Runtime(call.x_MC), Runtime(call.w_C), call.stats,
          Runtime(call.dx_MC), call.partials, call.amax, call.M, call.C, call.add_to_dx);
    }
    AddPartials(call.partials, blocks, call.C, call.dw_C, call.db_C, call.add_to_weights, stream);
  }
};

}  // namespace

void LaunchRowNormBackward(const RowNormBackward& call, cudaStream_t stream) {
  if (call.norm == RowNorm::kLayer) {
    Launch<RowNorm::kLayer>{call, stream}.Choose();
  } else {
    Launch<RowNorm::kRms>{call, stream}.Choose();
  }
}

}  // namespace zeroplan::cuda
