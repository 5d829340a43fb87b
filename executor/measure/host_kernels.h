// Runs the CPU backend's kernels of an offloaded optimizer on memory of its own.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/program/program.h"
#include "core/program/step_state.h"
#include "executor/kernels/thread_pool.h"
#include "executor/measure/measurement.h"

namespace zeroplan {

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
  // Times of each kernel, by rising size: medians over rounds in which all take their turn.
  std::vector<NamedKernelTime> Times(int rounds);
  // AdamW over all of so much memory, 16 bytes an element, again and again: what of it stays in
  // the caches from one step to the next makes it faster.
  std::vector<MemoryKernelTime> UpdateTimes(int rounds);

 private:
  // Seconds of each call, over one part of the memory after another.
  std::vector<double> CallSeconds(KernelId kernel, int64_t n, int calls);

  struct Memory;
  ThreadPool& pool_;
  int64_t elements_;
  int64_t next_ = 0;  // where the next timed call begins
  std::unique_ptr<Memory> memory_;
  StepState state_;
  Program program_;
  std::vector<std::byte> scratch_;  // of kNormSq
};

}  // namespace zeroplan
