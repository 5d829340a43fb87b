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
  // Told what comes next, on rank 0.
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

// All ranks of `group`, one a GPU, call this at once; on rank 0 `result` holds what was measured.
// Of several hosts the first is measured, and the network between all of them.
// Throws Error(kRuntime), and Error(kUsage) where hosts have unlike numbers of ranks.
void MeasureDevice(ProcessGroup& group, const DeviceMeasureOptions& options,
                   MachineMeasurement& result);

// GPUs that this process may use; 0 without a driver.
int VisibleGpus();

// The CUDA libraries of this build and this machine.

// Loads what is found, makes no context on a GPU. Only in builds with CUDA. Never throws.
LibraryFacts QueryLibraries();

// Page-locks host memory on the current GPU, piece by piece, up to `most_bytes` (0: three quarters
// of what is free) or until the driver refuses or `seconds` are over, and lets it go. Only in
// builds with CUDA. Throws Error(kRuntime) where there is no GPU.
PinnedFacts TryPinnedMemory(uint64_t most_bytes, double seconds);

}  // namespace zeroplan
