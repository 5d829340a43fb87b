#include "core/program/step_state.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/loss/cross_entropy.h"
#include "executor/kernels/cuda/loss/cross_entropy_ring.cuh"

namespace zeroplan::cuda {
namespace {

using namespace cross_entropy;

constexpr int kWarpRows = 8;  // rows of a block with a warp for each
constexpr int kUnroll = 4;    // vectors of a thread in flight
// A multiprocessor works on two rows at a time, by 512 threads each, while those of all of them,
// read twice, stay in the second-level cache; longer ones are worked on one at a time, by 1024.
constexpr int kThreads = 512, kLongRowThreads = 1024;
constexpr int64_t kLongRowBytes = 160 << 10;  // 264 rows of it are 41 MB, of an H100's 50
constexpr int64_t kLeastRingBytes = 60 << 10, kMostRingRows = 1 << 30;

template <int W>
__device__ void Add(Softmax& s, const float (&x)[W], int count) {
  float most = s.max;
#pragma unroll
  for (int e = 0; e < W; ++e) {
    if (e < count) most = fmaxf(most, x[e]);
  }
  s.sum *= FastExp(s.max - most);
  s.max = most;
#pragma unroll
  for (int e = 0; e < W; ++e) {
    if (e < count) s.sum += FastExp(x[e] - most);
  }
}

template <bool kWarpPerRow, int kBlock>
__device__ Softmax Combine(const Softmax& own, Softmax* shared) {
  Softmax all = WarpSoftmax(own);
  if constexpr (kWarpPerRow) return all;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = all;
  __syncthreads();
  all = threadIdx.x % 32 < kBlock / 32 ? shared[threadIdx.x % 32] : Softmax{};
  return WarpSoftmax(all);
}

// A row is read twice, the second time mostly from the L2 cache, and written once.
template <bool kWarpPerRow, int kBlock, int W, typename Logits>
__global__ void __launch_bounds__(kBlock, kBlock == kLongRowThreads ? 1 : 2)
    CrossEntropyKernel(Logits logits_RVp, const int32_t* targets_R, const StepState* state,
                       float* loss_R, int64_t R, int V, int Vp) {
  __shared__ Softmax shared[kBlock / 32];
  constexpr int kLanes = kWarpPerRow ? 32 : kBlock;
  const int lane = kWarpPerRow ? threadIdx.x % 32 : threadIdx.x;
  const int64_t r =
      kWarpPerRow ? static_cast<int64_t>(blockIdx.x) * kWarpRows + threadIdx.x / 32 : blockIdx.x;
  if (r >= R) return;  // whole warps, in blocks that do not synchronise
  const int64_t row = r * Vp;
  const int target = targets_R[r];
  if (target >= V) FailIndex("target", target, r, V);
  if (target < 0) {
    if (lane == 0) loss_R[r] = 0;
    if (state == nullptr) return;
    const float zeros[W] = {};
    for (int c = lane * W; c < Vp; c += kLanes * W) logits_RVp.Store(row + c, zeros);
    return;
  }
  // Read before any thread writes: the barrier or shuffles of Combine come between.
  const float target_logit = logits_RVp.Get(row + target);

  Softmax mine;
  int c = lane * W;
  for (; c + ((kUnroll - 1) * kLanes + 1) * W <= V; c += kUnroll * kLanes * W) {
    float x[kUnroll][W];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) logits_RVp.Load(row + c + u * kLanes * W, x[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) Add(mine, x[u], W);
  }
  for (; c < V; c += kLanes * W) {
    float x[W];
    logits_RVp.Load(row + c, x);  // W divides Vp: within the row
    Add(mine, x, V - c);
  }
  const Softmax all = Combine<kWarpPerRow, kBlock>(mine, shared);
  if (lane == 0) {
    loss_R[r] =
        static_cast<float>(static_cast<double>(logf(all.sum)) + static_cast<double>(all.max) -
                           static_cast<double>(target_logit));
  }
  if (state == nullptr) return;
  if constexpr (kWarpPerRow) __syncwarp();
  const float inverse = 1.0f / all.sum, grad_scale = state->grad_scale;
  const float factor = inverse * grad_scale;
#pragma unroll 2
  for (int c = lane * W; c < Vp; c += kLanes * W) {
    float x[W];
    logits_RVp.Load(row + c, x);
    const bool has_target = target >= c && target < c + W;
#pragma unroll
    for (int e = 0; e < W; ++e) x[e] = FastExp(x[e] - all.max) * factor;
    if (has_target || c + W > V) {
      const float p = FastExp(target_logit - all.max) * inverse;
#pragma unroll
      for (int e = 0; e < W; ++e) {
        if (c + e == target) x[e] = (p - 1.0f) * grad_scale;
        if (c + e >= V) x[e] = 0;
      }
    }
    logits_RVp.Store(row + c, x);
  }
}

constexpr int kReduceThreads = 1024;

__global__ void __launch_bounds__(kReduceThreads)
    LossReduceKernel(const float* loss_n, int64_t n, StepState* state, bool add) {
  __shared__ double shared[kReduceThreads / 32];
  double sum = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += kReduceThreads) sum += static_cast<double>(loss_n[i]);
  sum = BlockSum<kReduceThreads>(sum, shared);
  if (threadIdx.x != 0) return;
  const double mean = sum / static_cast<double>(n);
  state->loss_sum = add ? state->loss_sum + mean : mean;
}

template <int W, typename Logits>
void Launch(const Logits& logits, const int32_t* targets, const StepState* state, float* loss,
            int64_t R, int64_t V, int64_t Vp, int64_t row_bytes, cudaStream_t stream) {
  const int v = static_cast<int>(V), vp = static_cast<int>(Vp);
  if (Vp <= 2048) {
    CrossEntropyKernel<true, 32 * kWarpRows, W>
        <<<GridOf(R, kWarpRows), 32 * kWarpRows, 0, stream>>>(logits, targets, state, loss, R, v,
                                                              vp);
  } else if (row_bytes <= kLongRowBytes) {
    CrossEntropyKernel<false, kThreads, W>
        <<<GridOf(R, 1), kThreads, 0, stream>>>(logits, targets, state, loss, R, v, vp);
  } else {
    CrossEntropyKernel<false, kLongRowThreads, W>
        <<<GridOf(R, 1), kLongRowThreads, 0, stream>>>(logits, targets, state, loss, R, v, vp);
  }
}

// False: this GPU has no clusters, or a row does not fit into the memory of one so large.
template <typename T, int kCluster, int kThreads>
bool LaunchRing(const FloatArray& logits, const int32_t* targets, const StepState* state,
                float* loss, int64_t R, int64_t V, int64_t Vp, cudaStream_t stream) {
  const auto kernel = RingKernel<T, kCluster, kThreads>;
  constexpr int64_t kSlotBytes = kThreads * 16;
  const int64_t pieces = CeilDiv64(Vp * static_cast<int64_t>(sizeof(T)), kCluster * kSlotBytes);
  const int64_t bytes = (pieces + kAhead) * kSlotBytes;
  if (pieces < kAhead || R > kMostRingRows) return false;
  int device = 0, room = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaFuncAttributes attributes{};
  cudaFuncGetAttributes(&attributes, kernel);
  if (attributes.ptxVersion < 90 ||
      bytes + static_cast<int64_t>(attributes.sharedSizeBytes) > room) {
    return false;
  }
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(bytes));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kCluster);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess || clusters < 1) {
    cudaGetLastError();  // cleared: another kernel does the work
    return false;
  }
  if (clusters > R) clusters = static_cast<int>(R);
  config.gridDim = dim3(static_cast<unsigned>(clusters * kCluster));
  cudaLaunchKernelEx(&config, kernel, static_cast<T*>(logits.data), targets, state, loss,
                     static_cast<int>(R), static_cast<int>(V), static_cast<int>(Vp),
                     static_cast<int>(pieces));
  return true;
}

// By few multiprocessors a row, and by two blocks on one where their rows fit; as measured on an
// H200. False: no ring for such rows.
template <typename T>
bool Ring(const FloatArray& logits, const int32_t* targets, const StepState* state, float* loss,
          int64_t R, int64_t V, int64_t Vp, int64_t row_bytes, cudaStream_t stream) {
  const auto launch = [&](auto run) { return run(logits, targets, state, loss, R, V, Vp, stream); };
  if (row_bytes < kLeastRingBytes) return false;
  if (row_bytes <= 80 << 10) return launch(LaunchRing<T, 1, 512>);
  if (row_bytes <= 160 << 10) return launch(LaunchRing<T, 1, 1024>);
  if (row_bytes <= 320 << 10) return launch(LaunchRing<T, 2, 1024>);
  return launch(LaunchRing<T, 4, 512>);
}

}  // namespace

void LaunchCrossEntropy(const FloatArray& logits_RVp, const int32_t* targets_R,
                        const StepState* state, float* loss_R, int64_t R, int64_t V, int64_t Vp,
                        cudaStream_t stream) {
  if (R == 0) return;
  const auto row_bytes = Vp * static_cast<int64_t>(DtypeBytes(logits_RVp.dtype));
  if (Vp % kVector != 0 || !Aligned(logits_RVp.data)) {
    Launch<1>(Runtime(logits_RVp), targets_R, state, loss_R, R, V, Vp, row_bytes, stream);
    return;
  }
  WithFloatType(logits_RVp.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool gradients = state != nullptr;
    if (gradients && Ring<T>(logits_RVp, targets_R, state, loss_R, R, V, Vp, row_bytes, stream)) {
      return;
    }
    Launch<kVector>(Typed<T>(logits_RVp), targets_R, state, loss_R, R, V, Vp, row_bytes, stream);
  });
}

void LaunchLossReduce(const float* loss_n, int64_t n, StepState* state, bool add,
                      cudaStream_t stream) {
  LossReduceKernel<<<1, kReduceThreads, 0, stream>>>(loss_n, n, state, add);
}

}  // namespace zeroplan::cuda
