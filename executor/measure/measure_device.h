// Measures GPUs through the executor's own kernels, libraries and collectives.
#pragma once

#include <functional>
#include <string>

#include "executor/measure/measurement.h"
#include "executor/process/process_group.h"
#include "machine/gpu_state.h"

namespace zeroplan {

struct DeviceParts {
  bool runtime = false, gemm = false, attention = false, memory = false, power = false,
       pcie = false, collectives = false, network = false;
  bool any() const {
    return runtime || gemm || attention || memory || power || pcie || collectives || network;
  }
};

struct DeviceMeasureOptions {
  DeviceParts parts;
  bool quick = false;
  // Called on rank 0 with the next part.
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

// All ranks of `group`, one a GPU, call this at once; sets `result` on rank 0. With several hosts
// measures the first, and the network between all of them. Throws Error(kRuntime), and
// Error(kUsage) if hosts have different numbers of ranks.
void MeasureDevice(ProcessGroup& group, const DeviceMeasureOptions& options,
                   MachineMeasurement& result);

// GPUs that this process may use; 0 without a driver.
int VisibleGpus();

// The CUDA libraries of this build and this machine.

// Loads the libraries that it finds, without a context on a GPU. Only in builds with CUDA. Never
// throws.
LibraryFacts QueryLibraries();

// Throws Error(kRuntime) that names the first thing that work on `gpus` GPUs lacks, a driver or a
// library, and the command that gets it. Starts no driver: call it before processes fork. Only
// in builds with CUDA.
void RequireCuda(int gpus);

// Page-locks host memory on the current GPU, piece by piece, up to `most_bytes` (0: three quarters
// of the free memory) or until the driver refuses or `seconds` are over, and frees it. Only in
// builds with CUDA. Throws Error(kRuntime) if there is no GPU.
PinnedFacts TryPinnedMemory(uint64_t most_bytes, double seconds);

}  // namespace zeroplan
