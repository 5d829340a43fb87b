// What of the runtimes' memory cannot be counted from their code, and was fitted to measured runs:
// all of it is here. docs/runtimes.md has the runs, and the errors if each is left out of the fit.
#pragma once

#include <cstdint>

#include "planner/runtimes/runtime_footprint.h"

namespace zeroplan {

// The largest errors beside measured runs (docs/runtimes.md; a test holds these to the runs).
struct RuntimeMargins {
  int runs;
  double allocated, reserved, device, host;  // as shares; 0: not measured
};
inline constexpr RuntimeMargins kDeepSpeedMargins{31, 0.041, 0.086, 0.089, 0.048};
inline constexpr RuntimeMargins kFsdp2Margins{9, 0, 0, 0.090, 0};

// Resident set of Python with PyTorch and DeepSpeed, without tensors.
uint64_t HostBaseBytes(int stage, TorchPhase phase);

// Device memory in use less what the allocator reserved: CUDA context, modules, NCCL's buffers.
uint64_t ContextBytes(int stage, int gpus);

}  // namespace zeroplan
