// The launch of the kernel for rows of pieces, the kernel for all others, and the end of both: the
// blocks' partial sums of dw and db.
#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/gemm/column_sums.h"
#include "executor/kernels/cuda/layer_norm/layer_norm.h"
#include "executor/kernels/cuda/layer_norm/layer_norm_backward_rows.cuh"

namespace zeroplan::cuda {
namespace {

using namespace layer_norm_backward;

constexpr int kAnyThreads = 256;

// Any C and dtypes: a block a row at a time, sums of dw and db in its partials in memory, where
// each thread has columns of its own.
__global__ void __launch_bounds__(kAnyThreads)
    AnyBackwardKernel(Runtime dy_MC, Runtime x_MC, Runtime w_C, const float* stats_M2,
                      Runtime dx_MC, float* partials, int64_t M, int64_t C, bool add_to_dx) {
  __shared__ float shared[2][kAnyThreads / 32];
  float* dw_C = partials + static_cast<int64_t>(blockIdx.x) * 2 * C;
  float* db_C = dw_C + C;
  for (int64_t c = threadIdx.x; c < C; c += kAnyThreads) dw_C[c] = db_C[c] = 0;
  for (int64_t m = blockIdx.x; m < M; m += gridDim.x) {
    const float mean = stats_M2[2 * m], inverse_std = stats_M2[2 * m + 1];
    float sum_d = 0, sum_dn = 0;
    for (int64_t c = threadIdx.x; c < C; c += kAnyThreads) {
      const float g = dy_MC.Get(m * C + c), n = (x_MC.Get(m * C + c) - mean) * inverse_std;
      const float d = g * w_C.Get(c);
      sum_d += d;
      sum_dn += d * n;
      dw_C[c] += g * n;
      db_C[c] += g;
    }
    __syncthreads();  // the last row's sums have been read
    const float mean_d = BlockSum<kAnyThreads>(sum_d, shared[0]) / static_cast<float>(C);
    const float mean_dn = BlockSum<kAnyThreads>(sum_dn, shared[1]) / static_cast<float>(C);
    for (int64_t c = threadIdx.x; c < C; c += kAnyThreads) {
      const float n = (x_MC.Get(m * C + c) - mean) * inverse_std;
      const float d = dy_MC.Get(m * C + c) * w_C.Get(c);
      const float dx = (d - mean_d - n * mean_dn) * inverse_std;
      dx_MC.Set(m * C + c, add_to_dx ? dx_MC.Get(m * C + c) + dx : dx);
    }
  }
}

// Bytes of shared memory that each of so many blocks on a multiprocessor may ask for beside those
// that RowsKernel always has.
int64_t RingRoom(int blocks) {
  int device = 0, all = 0, reserved = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device);
  return all / blocks - reserved - static_cast<int64_t>(2 * kMostWarps * sizeof(float2));
}

struct Launch {
  const FloatArray &dy, &x, &w, &dx;
  const float* stats;
  float* partials;
  int64_t M, C, blocks;
  bool add_to_dx;
  cudaStream_t stream;

  // False: no row fits into shared memory.
  template <typename T, int kElements>
  bool Run() const {
    const int64_t row_threads = CeilDiv64(C, kElements * 32) * 32;
    int64_t groups = kMaxThreads<kElements> / row_threads;
    if (row_threads > 32 && groups > kMostSyncedGroups) groups = kMostSyncedGroups;
    // At least 8 * C bytes where groups > 1: what their sums need.
    const int64_t slots = groups * (add_to_dx ? 3 : 2) * C * static_cast<int64_t>(sizeof(T));
    int64_t stages = RingRoom(kBlocksTogether<kElements>) / slots;
    if (stages < 1) return false;
    if (stages > kMaxStages) stages = kMaxStages;
    const auto kernel = RowsKernel<T, kElements>;
    const auto ring = static_cast<int>(stages * slots);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ring);
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
    const dim3 block(static_cast<unsigned>(row_threads), static_cast<unsigned>(groups));
    const Inputs<T> in{static_cast<const T*>(dy.data), static_cast<const T*>(x.data),
                       static_cast<const T*>(w.data), stats};
    kernel<<<static_cast<unsigned>(blocks), block, static_cast<size_t>(ring), stream>>>(
        in, static_cast<T*>(dx.data), partials, static_cast<int>(M), static_cast<int>(C),
        static_cast<int>(stages), add_to_dx);
    return true;
  }

  template <typename T>
  bool RunFor() const {
    if (C <= kMostColumns<8>) return Run<T, 8>();
    if (C <= kMostColumns<16>) return Run<T, 16>();
    return Run<T, 24>();
  }
};

}  // namespace

void LaunchLayerNormBackward(const FloatArray& dy_MC, const FloatArray& x_MC, const FloatArray& w_C,
                             const float* stats_M2, const LayerNormGradients& out, float* partials,
                             int64_t M, int64_t C, cudaStream_t stream) {
  const Dtype dtype = dy_MC.dtype;
  const FloatArray& dx_MC = out.dx_MC;
  // Past 8 elements a thread a multiprocessor has room for one block.
  int64_t blocks = NormBackwardBlocks(M);
  if (C > kMostColumns<8> && blocks > kMultiprocessors) blocks = kMultiprocessors;
  bool done = false;
  const auto pack = static_cast<int64_t>(16 / DtypeBytes(dtype));
  if (C % pack == 0 && C <= kMostColumns<24> && M <= kMostRows && x_MC.dtype == dtype &&
      w_C.dtype == dtype && dx_MC.dtype == dtype && Aligned(dy_MC.data) && Aligned(x_MC.data) &&
      Aligned(w_C.data) && Aligned(dx_MC.data) && Aligned(stats_M2) && Aligned(partials)) {
    const Launch launch{dy_MC, x_MC, w_C,    dx_MC,         stats_M2, partials,
                        M,     C,    blocks, out.add_to_dx, stream};
    WithFloatType(dtype, [&](auto tag) { done = launch.RunFor<typename decltype(tag)::type>(); });
  }
  if (!done) {
    blocks = NormBackwardBlocks(M);
    AnyBackwardKernel<<<static_cast<unsigned>(blocks), kAnyThreads, 0, stream>>>(
        Runtime(dy_MC), Runtime(x_MC), Runtime(w_C), stats_M2, Runtime(dx_MC), partials, M, C,
        out.add_to_dx);
  }
  AddPartials(partials, blocks, C, out.dw_C, out.db_C, out.add_to_weights, stream);
}

}  // namespace zeroplan::cuda
