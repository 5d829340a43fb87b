// Bandwidths of a host's memory.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/program/program.h"
#include "core/program/step_state.h"
#include "executor/kernels/kernel_call.h"
#include "executor/kernels/thread_pool.h"
#include "executor/measure/measurement.h"

namespace zeroplan {

// Uses `bytes` of memory at most, on `threads` threads; medians of `rounds` after a warm-up.
//   triad  a[i] = b[i] + s * c[i] in fp32, 12 bytes an element (McCalpin 1995)
//   adam   the CPU backend's AdamW row as an offloaded optimizer runs it: gradient in bf16 read,
//          master and both moments in fp32 read and written, parameter in bf16 written
// REQUIRES: bytes of at least 1 MiB.
HostBandwidths MeasureHostMemory(uint64_t bytes, int threads, int rounds);

// Bytes that one measurement may use of `available_bytes`: several times any cache, and a part of
// the available memory.
uint64_t HostMeasureBytes(uint64_t available_bytes, bool quick);

// Host memory to measure with.

// An array whose pages are first touched by the pool's threads, so that on several memory
// controllers each thread's part is near it.
template <typename T>
class HostArray {
 public:
  HostArray(ThreadPool& pool, int64_t n, T value) {
    const uint64_t bytes = AlignUp(static_cast<uint64_t>(n) * sizeof(T), kPage);
    data_.reset(static_cast<T*>(std::aligned_alloc(kPage, bytes)));
    if (!data_) ThrowRuntime("no memory for {} to measure the host with", FormatBytes(bytes));
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
    constexpr int64_t kGrain = 1 << 14;
    pool.ParallelFor(n, kGrain, [&](int64_t begin, int64_t end, int) {
      std::fill(data_.get() + begin, data_.get() + end, value);
    });
  }
  T* data() const { return data_.get(); }
  KernelArg arg(Dtype dtype, int64_t begin, int64_t n) const {
    return {data_.get() + begin, static_cast<uint64_t>(n) * sizeof(T), dtype};
  }

 private:
  static constexpr uint64_t kPage = uint64_t{2} << 20;
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<T, Free> data_;
};

// A program with the minimum for AdamW's row: one decayed tensor, one unit, one rank.
inline Program AdamProgram(int64_t n) {
  const auto elements = static_cast<uint64_t>(n);
  Program program;
  program.setup.optimizer.weight_decay = 0.1;
  program.layout.tensors = std::make_shared<std::vector<ParamTensor>>(std::vector<ParamTensor>{
      {{.name = "all", .shape = {n, 1}, .decay = true, .init_std = 0.02f, .unpadded_rows = n}}});
  program.layout.shards = 1;
  Unit unit{.layer = 0, .slots = {{0, 0, elements}}};
  unit.elements = unit.param_elements = unit.shard_elements = unit.padded_elements = elements;
  program.layout.units.push_back(unit);
  return program;
}

// Runs the CPU backend's kernels of an offloaded optimizer on memory of its own.
class HostKernels {
 public:
  // Memory for up to `elements`: a bf16 gradient and parameter, fp32 master weights and moments, 16
  // bytes an element. Throws Error(kRuntime) if there is no memory for them.
  HostKernels(ThreadPool& pool, int64_t elements);
  ~HostKernels();

  // One call of kAdamW, kNormSq (of the gradient) or kConvert (of the gradient into the master
  // weights) over `n` elements from `begin` on.
  void Run(KernelId kernel, int64_t begin, int64_t n);
  // Bytes of a call, as the cost model counts them.
  static double Bytes(KernelId kernel, int64_t n);
  // Median seconds of `calls` calls over one part of the memory after another, at least two.
  double Seconds(KernelId kernel, int64_t n, int calls);
  // Times of each kernel, by rising size: medians over rounds in which all kernels run in turn.
  std::vector<NamedKernelTime> Times(int rounds);
  // AdamW over `n` elements with each kind of lighter states. Leaves other states behind.
  std::vector<LightUpdate> LightTimes(int64_t n, int rounds);
  // AdamW over all of a given memory, 16 bytes an element, again and again: the part that stays in
  // the caches from one step to the next makes it faster.
  std::vector<MemoryKernelTime> UpdateTimes(int rounds);

 private:
  // Seconds of each call, over one part of the memory after another.
  std::vector<double> CallSeconds(KernelId kernel, int64_t n, int calls);

  struct Memory;
  ThreadPool& pool_;
  int64_t elements_;
  int64_t next_ = 0;  // begin of the next timed call
  std::unique_ptr<Memory> memory_;
  StepState state_;
  Program program_;
  std::vector<std::byte> scratch_;  // scratch of kNormSq
};

}  // namespace zeroplan
