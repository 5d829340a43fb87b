// Runs and times rows of the CUDA kernel table on memory of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/program/program.h"
#include "executor/device/cuda/cuda_arenas.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/gemm/gemm_plans.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// Times the GPU, not the issuing, under the conditions of training: rounds are graphs, like the
// engine's steps, on a GPU as warm as the timed work makes it. Under load a GPU lowers its clock
// within a tenth of a second to stay within its power limit (an H200 from 1980 to about 1500 MHz).

class StreamTimer {
 public:
  // Works on the current device. `quick`: shorter rounds.
  explicit StreamTimer(bool quick);

  cudaStream_t stream() const { return stream_.get(); }

  // Median seconds of one call of `run`, which issues to stream(). Its argument counts 0, 1, 2, ...
  // modulo `buffers`, to rotate that many sets of buffers. A round has several calls if they are
  // short.
  double MedianSeconds(int buffers, const std::function<void(int)>& run);
  // Seconds of `calls` calls together, issued behind work that keeps the GPU busy meanwhile.
  double RoundSeconds(int calls, const std::function<void(int)>& run);

 private:
  double GraphSeconds(cudaGraphExec_t graph);

  // target time of all rounds of one median, and of the warm-up before
  double round_seconds_, warm_seconds_;
  CudaStream stream_;
  CudaEvent begin_, end_;
};

// Seconds between two recorded events; waits for the second.
double SecondsBetween(cudaEvent_t begin, cudaEvent_t end);

using DeviceMemory = std::unique_ptr<std::byte, FreeDevice>;
DeviceMemory AllocateDeviceMemory(uint64_t bytes);

// The contents of an argument.
enum class ArgKind : uint8_t {
  kNone,
  kRandom,  // uniform numbers
  kZero,
  kOutput,   // undefined
  kState,    // one StepState for all sets
  kScratch,  // one for all sets
  kInts,     // BenchArg::ints
};
struct BenchArg {
  ArgKind kind = ArgKind::kNone;
  Dtype dtype = Dtype::kU8;
  int64_t elements = 0;
  std::vector<int32_t> ints = {};

  uint64_t bytes() const { return static_cast<uint64_t>(elements) * DtypeBytes(dtype); }
};

class KernelBench {
 public:
  // Uses the current device, `device`. Allocates up to `memory_bytes`, at most half of the free
  // memory. Tuned matmuls go to the cache that training reads.
  KernelBench(int device, uint64_t memory_bytes, bool quick);

  enum class Caches : uint8_t {
    kCold,  // several sets of arguments rotate if one would stay in the caches
    kWarm,  // small sets stay in the caches, like the output of a step's previous kernel
  };
  // Median seconds of a launch. Arguments are in the row's order, without the workspace, which is
  // added if the row has one. Nothing if they do not fit the memory.
  std::optional<double> Seconds(KernelId id, const KernelDims& dims,
                                const std::vector<BenchArg>& args, uint8_t flags = kNoFlags,
                                Caches caches = Caches::kCold);
  // The time of `run` alone, called with set after set of `args`; issued to the stream, because
  // copies within a GPU are slower in a graph (H200, 1 GiB: 2.7 TB/s instead of 4.25).
  std::optional<double> Seconds(const std::vector<BenchArg>& args,
                                const std::function<void(std::span<const KernelArg>)>& run);
  // Seconds from one launch to the next in a chain of launches, median of `rounds`.
  double ChainSeconds(KernelId id, const KernelDims& dims, const std::vector<BenchArg>& args,
                      int launches, int rounds);
  // Prepares a launch and passes `body` a function that launches it on timer().stream(), on the
  // same memory every time.
  void WithLaunch(KernelId id, const KernelDims& dims, const std::vector<BenchArg>& args,
                  const std::function<void(const std::function<void()>& launch)>& body);

  StreamTimer& timer() { return timer_; }
  void SaveTuned() { gemm_.Save(); }

 private:
  using Set = std::vector<KernelArg>;
  std::optional<std::vector<Set>> Place(const std::vector<BenchArg>& args,
                                        Caches caches = Caches::kCold) const;
  // Makes plans and algorithms of the row for these arguments, and fills them again afterwards.
  void Prepare(KernelId id, const KernelDims& dims, uint8_t flags,
               const std::vector<BenchArg>& args, const std::vector<Set>& sets);
  void Fill(const std::vector<BenchArg>& args, const std::vector<Set>& sets);
  // Seconds of one of `calls` calls that are issued to the stream together, median of `rounds`.
  double StreamSeconds(int calls, int rounds, const std::function<void(int)>& run);
  std::vector<BenchArg> WithWorkspace(KernelId id, const KernelDims& dims,
                                      std::vector<BenchArg> args) const;

  StreamTimer timer_;
  uint64_t memory_bytes_ = 0;
  DeviceMemory memory_, state_;
  uint64_t cache_bytes_ = 0;  // the GPU's last level
  Program program_;           // AdamW's unit
  GemmPlans gemm_;
  AttentionPlans attention_;
  CudaLaunch launch_;
  KernelContext context_;
};

}  // namespace zeroplan
