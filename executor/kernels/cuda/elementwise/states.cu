// Optimizer states between fp32 and what they are kept in.
#include "core/base/split_master.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/dynamic8.cuh"
#include "executor/kernels/cuda/elementwise/elementwise.h"
#include "executor/kernels/cuda/store_pack.cuh"

namespace zeroplan::cuda {
namespace {

constexpr int kStateThreads = 256;  // as Dynamic8Table has it

template <int W>
__device__ inline void SplitRun(const float* master_n, uint16_t* param_n, int16_t* rest_n,
                                int64_t i) {
  const Pack<float, W> master = LoadPack<float, W>(master_n + i);
  Pack<uint16_t, W> params;
  Pack<int16_t, W> rests;
#pragma unroll
  for (int e = 0; e < W; ++e) {
    const auto [param, rest] = SplitBits(__float_as_uint(master.v[e]));
    params.v[e] = param;
    rests.v[e] = rest;
  }
  StorePack(param_n + i, params);
  if (rest_n != nullptr) StorePack(rest_n + i, rests);
}

template <int W>
__device__ inline void JoinRun(const uint16_t* param_n, const int16_t* rest_n, float* master_n,
                               int64_t i) {
  const Pack<uint16_t, W> params = LoadPack<uint16_t, W>(param_n + i);
  const Pack<int16_t, W> rests = LoadPack<int16_t, W>(rest_n + i);
  Pack<float, W> master;
#pragma unroll
  for (int e = 0; e < W; ++e) {
    master.v[e] = __uint_as_float(JoinBits({params.v[e], rests.v[e]}));
  }
  StorePack(master_n + i, master);
}

template <int W>
__global__ void __launch_bounds__(kStateThreads)
    SplitMasterKernel(const float* master_n, uint16_t* param_n, int16_t* rest_n, int64_t n) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kStateThreads + threadIdx.x) * W;
  if (i + W <= n) {
    SplitRun<W>(master_n, param_n, rest_n, i);
  } else {
    for (int64_t j = i; j < n; ++j) SplitRun<1>(master_n, param_n, rest_n, j);
  }
}

template <int W>
__global__ void __launch_bounds__(kStateThreads)
    JoinMasterKernel(const uint16_t* param_n, const int16_t* rest_n, float* master_n, int64_t n) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kStateThreads + threadIdx.x) * W;
  if (i + W <= n) {
    JoinRun<W>(param_n, rest_n, master_n, i);
  } else {
    for (int64_t j = i; j < n; ++j) JoinRun<1>(param_n, rest_n, master_n, j);
  }
}

template <bool kHasSign>
__global__ void __launch_bounds__(kStateThreads)
    ToDynamic8Kernel(const float* src_n, Dynamic8Block* blocks, int64_t n) {
  __shared__ Dynamic8Table<kHasSign> table;
  table.Fill();
  __syncthreads();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kStateThreads + threadIdx.x) * kVector;
  if (i >= n) return;
  float x[kVector];
  Widen(LoadPack<float, kVector>(src_n + i), x);
  StoreDynamic8(table, x, blocks, i);
}

template <bool kHasSign>
__global__ void __launch_bounds__(kStateThreads)
    FromDynamic8Kernel(const Dynamic8Block* blocks, float* dst_n, int64_t n) {
  __shared__ Dynamic8Table<kHasSign> table;
  table.Fill();
  __syncthreads();
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kStateThreads + threadIdx.x) * kVector;
  if (i >= n) return;
  float x[kVector];
  ReadDynamic8(table, LoadDynamic8(blocks, i), x);
  StorePack(dst_n + i, Narrow<float>(x));
}

}  // namespace

void LaunchSplitMaster(const float* master_n, uint16_t* param_n, int16_t* rest_n, int64_t n,
                       cudaStream_t stream) {
  if (n == 0) return;
  const bool vectors = Aligned(master_n) && Aligned(param_n) && Aligned(rest_n);
  const unsigned grid = GridOf(n, kStateThreads * (vectors ? kVector : 1));
  const auto kernel = vectors ? SplitMasterKernel<kVector> : SplitMasterKernel<1>;
  kernel<<<grid, kStateThreads, 0, stream>>>(master_n, param_n, rest_n, n);
}

void LaunchJoinMaster(const uint16_t* param_n, const int16_t* rest_n, float* master_n, int64_t n,
                      cudaStream_t stream) {
  if (n == 0) return;
  const bool vectors = Aligned(master_n) && Aligned(param_n) && Aligned(rest_n);
  const unsigned grid = GridOf(n, kStateThreads * (vectors ? kVector : 1));
  const auto kernel = vectors ? JoinMasterKernel<kVector> : JoinMasterKernel<1>;
  kernel<<<grid, kStateThreads, 0, stream>>>(param_n, rest_n, master_n, n);
}

void LaunchToDynamic8(const float* src_n, Dynamic8Block* blocks, bool has_sign, int64_t n,
                      cudaStream_t stream) {
  if (n == 0) return;
  const auto kernel = has_sign ? ToDynamic8Kernel<true> : ToDynamic8Kernel<false>;
  kernel<<<GridOf(n, kStateThreads * kVector), kStateThreads, 0, stream>>>(src_n, blocks, n);
}

void LaunchFromDynamic8(const Dynamic8Block* blocks, bool has_sign, float* dst_n, int64_t n,
                        cudaStream_t stream) {
  if (n == 0) return;
  const auto kernel = has_sign ? FromDynamic8Kernel<true> : FromDynamic8Kernel<false>;
  kernel<<<GridOf(n, kStateThreads * kVector), kStateThreads, 0, stream>>>(blocks, dst_n, n);
}

}  // namespace zeroplan::cuda
