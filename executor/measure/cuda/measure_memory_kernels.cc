// Launches, copies within the device, and kernels that only move memory.
#include <initializer_list>
#include <vector>

#include "executor/measure/cuda/device_parts.h"

namespace zeroplan {
namespace {

// A launch of a memory-bound row.
struct Launch {
  KernelId id;
  KernelDims dims;
  std::vector<BenchArg> args;
  uint8_t flags = kNoFlags;
};

// Bytes as the cost model counts a launch's, workspace included. States count as nothing beside
// them.
double BytesOf(const Launch& launch) {
  std::vector<ArgShape> args;
  for (const BenchArg& arg : launch.args) {
    const bool counts = arg.kind != ArgKind::kNone && arg.kind != ArgKind::kState;
    args.push_back(counts ? ArgShape{arg.bytes(), arg.dtype} : ArgShape{});
  }
  const KernelRow& row = KernelInfo(launch.id);
  if (const uint64_t bytes = row.workspace_bytes(launch.dims, Backend::kCuda); bytes > 0) {
    args.push_back({bytes, Dtype::kU8});
  }
  return row.bytes({launch.id, launch.flags, launch.dims, args});
}

BenchArg In(Dtype dtype, int64_t elements) { return {ArgKind::kRandom, dtype, elements}; }
BenchArg Out(Dtype dtype, int64_t elements) { return {ArgKind::kOutput, dtype, elements}; }
BenchArg Zero(Dtype dtype, int64_t elements) { return {ArgKind::kZero, dtype, elements}; }
constexpr BenchArg kState{ArgKind::kState};

Launch GeluForward(Dtype dtype, int64_t n) {
  return {KernelId::kGeluForward, {n}, {In(dtype, n), Out(dtype, n)}};
}
Launch GeluBackward(Dtype dtype, int64_t n) {
  return {KernelId::kGeluBackward, {n}, {In(dtype, n), In(dtype, n)}};
}

constexpr int64_t kHidden = 1600;

Launch LayerNormForward(Dtype dtype, int64_t rows) {
  const int64_t n = rows * kHidden;
  return {KernelId::kLayerNormForward,
          {rows, kHidden},
          {In(dtype, n), In(dtype, kHidden), In(dtype, kHidden), Out(dtype, n),
           Out(Dtype::kF32, 2 * rows)}};
}
Launch LayerNormBackward(Dtype dtype, int64_t rows) {
  const int64_t n = rows * kHidden;
  return {KernelId::kLayerNormBackward,
          {rows, kHidden},
          {In(dtype, n), In(dtype, n), In(dtype, kHidden), In(Dtype::kF32, 2 * rows), Out(dtype, n),
           Out(dtype, kHidden), Out(dtype, kHidden)}};
}
Launch RmsNormForward(Dtype dtype, int64_t rows) {
  const int64_t n = rows * kHidden;
  return {KernelId::kRmsNormForward,
          {rows, kHidden},
          {In(dtype, n), In(dtype, kHidden), Out(dtype, n), Out(Dtype::kF32, rows)}};
}
Launch RmsNormBackward(Dtype dtype, int64_t rows) {
  const int64_t n = rows * kHidden;
  return {KernelId::kRmsNormBackward,
          {rows, kHidden},
          {In(dtype, n), In(dtype, n), In(dtype, kHidden), In(Dtype::kF32, rows), Out(dtype, n),
           Out(dtype, kHidden)}};
}
Launch SwiGluForward(Dtype dtype, int64_t rows) {
  const int64_t n = rows * kHidden;
  return {KernelId::kSwiGluForward, {rows, kHidden}, {In(dtype, 2 * n), Out(dtype, n)}};
}
Launch SwiGluBackward(Dtype dtype, int64_t rows) {
  const int64_t n = rows * kHidden;
  return {KernelId::kSwiGluBackward, {rows, kHidden}, {In(dtype, n), In(dtype, 2 * n)}};
}
Launch NormSq(Dtype dtype, int64_t n) { return {KernelId::kNormSq, {n}, {In(dtype, n), kState}}; }
Launch CrossEntropy(Dtype dtype, int64_t rows) {
  constexpr int64_t kVocab = 50257, kPadded = 50304;
  return {KernelId::kCrossEntropy,
          {rows, kVocab, kPadded},
          {In(dtype, rows * kPadded), Zero(Dtype::kI32, rows), kState, Out(Dtype::kF32, rows)}};
}
Launch LargestMagnitude(Dtype dtype, int64_t n) {
  return {KernelId::kLargestMagnitude, {n}, {In(dtype, n), Zero(Dtype::kF32, 1)}};
}
// Both copies, with one scale.
Launch Quantize(Dtype dtype, int64_t rows) {
  const int64_t n = rows * kHidden;
  return {KernelId::kQuantize,
          {rows, kHidden},
          {In(dtype, n), In(Dtype::kF32, 1), Out(Dtype::kE4M3, n), Out(Dtype::kF32, 1),
           Out(Dtype::kE4M3, n)}};
}
Launch AdamW(Dtype dtype, int64_t n) {
  return {KernelId::kAdamW,
          {n, 0, 0},
          {In(dtype, n), kState, In(Dtype::kF32, n), Zero(Dtype::kF32, n), Zero(Dtype::kF32, n),
           Out(dtype, n)}};
}

// Three launches of each kernel: one as short as a call, one of some megabytes, one that is all
// bandwidth; the smallest of all says what a launch costs at least.
std::vector<Launch> Launches(Dtype dtype, bool has_fp8, bool quick) {
  constexpr int64_t kKi = 1024, kMi = kKi * kKi;
  std::vector<Launch> all;
  const auto add = [&](Launch (*make)(Dtype, int64_t), std::vector<int64_t> few,
                       std::initializer_list<int64_t> more) {
    if (!quick) few.insert(few.end(), more);
    for (const int64_t size : few) all.push_back(make(dtype, size));
  };
  add(GeluForward, {16 * kKi, 2 * kMi, 64 * kMi}, {256 * kKi, 16 * kMi, 256 * kMi});
  add(GeluBackward, {8 * kMi, 128 * kMi}, {1 * kMi, 32 * kMi});
  add(LayerNormForward, {1024, 4096, 32768}, {128, 16384});
  add(LayerNormBackward, {1024, 8192, 32768}, {128, 2048, 16384});
  add(RmsNormForward, {1024, 32768}, {128, 8192});
  add(RmsNormBackward, {1024, 32768}, {128, 8192});
  add(SwiGluForward, {1024, 65536}, {8192});
  add(SwiGluBackward, {1024, 65536}, {8192});
  add(CrossEntropy, {1024, 4096}, {128, 2048});
  add(NormSq, {1 * kMi, 64 * kMi}, {8 * kMi});
  add(AdamW, {1 * kMi, 4 * kMi, 64 * kMi}, {128 * kKi, 16 * kMi});
  if (has_fp8) {
    add(LargestMagnitude, {1 * kMi, 64 * kMi}, {8 * kMi});
    add(Quantize, {1024, 32768}, {128, 8192});
  }
  return all;
}

void MeasureLaunchOverhead(KernelBench& bench, Dtype dtype, KernelRates& rates) {
  // Small enough for the queue of launches, so that issuing never waits for the GPU.
  constexpr int kLaunches = 400, kRounds = 9;
  constexpr int64_t kElements = 64;
  const BenchArg x{ArgKind::kRandom, dtype, kElements};
  (void)bench.Seconds(KernelId::kGeluForward, {kElements}, {x, x});  // loads the kernel
  rates.launch_seconds =
      bench.ChainSeconds(KernelId::kGeluForward, {kElements}, {x, x}, kLaunches, kRounds);
}

}  // namespace

void MeasureMemoryKernels(KernelBench& bench, const DeviceProperties& device, bool quick,
                          KernelRates& rates) {
  const Dtype dtype = HalfDtype(device);
  MeasureLaunchOverhead(bench, dtype, rates);
  constexpr int64_t kCopyBytes = int64_t{1} << 30;
  const auto copy = bench.Seconds(
      {{ArgKind::kRandom, Dtype::kF32, kCopyBytes / 4}, {ArgKind::kOutput, Dtype::kU8, kCopyBytes}},
      [&](std::span<const KernelArg> args) {
        ZEROPLAN_CUDA(cudaMemcpyAsync(args[1].data, args[0].data, kCopyBytes,
                                      cudaMemcpyDeviceToDevice, bench.timer().stream()));
      });
  if (copy) rates.copy_bandwidth = 2.0 * kCopyBytes / *copy;
  for (const Launch& launch : Launches(dtype, HasFp8(device), quick)) {
    // Gradients and states of the update were not touched for a step.
    const bool update = launch.id == KernelId::kAdamW || launch.id == KernelId::kNormSq;
    const auto seconds =
        bench.Seconds(launch.id, launch.dims, launch.args, launch.flags,
                      update ? KernelBench::Caches::kCold : KernelBench::Caches::kWarm);
    if (seconds) rates.memory.push_back({launch.id, BytesOf(launch), *seconds});
  }
}

}  // namespace zeroplan
