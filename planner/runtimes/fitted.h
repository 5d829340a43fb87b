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

// What of the runtimes' time is not counted from their code or measured with the machine's profile.
struct TimeConstants {
  // Seconds that the Python thread takes:
  double launch = 6e-6;       // an operation of eager code, or a kernel of compiled code
  double graph = 150e-6;      // to enter compiled code
  double collective = 60e-6;  // to issue a collective
  double read_back = 20e-6;   // to ask the GPU for a number
  // DeepSpeed: a micro-step; a gradient's hook; at stage 3 a module's hooks, a gather, and in it
  // each parameter, its release, and each rank's slice of each gradient.
  double micro_step = 2e-3;
  double gradient_hook = 60e-6;
  double module_hooks = 250e-6;
  double gather = 150e-6;
  double gathered_parameter = 100e-6;
  double released_parameter = 60e-6;
  double scattered_slice = 4e-6;
  // FSDP2: a group's gather or reduction; a parameter in the update.
  double group_hook = 200e-6;
  double dtensor = 50e-6;
  // Shares of the memory's rate that PyTorch's pointwise, norm and reduction kernels reach.
  double eager_memory = 0.75, compiled_memory = 0.85;
  // scaled_dot_product_attention beside the profile's.
  double attention = 1;
  // What kernels keep of their speed beside NCCL, beyond what the profile says.
  double compute_beside_collective = 1;
  // DeepSpeed's CPU Adam, of the rate of the profile's; and PyTorch's clipping on the host.
  double cpu_adam = 0.8, cpu_clip = 0.5;
};

// Resident set of Python with PyTorch and DeepSpeed, without tensors.
uint64_t HostBaseBytes(int stage, TorchPhase phase);

// Device memory in use less what the allocator reserved: CUDA context, modules, NCCL's buffers.
uint64_t ContextBytes(int stage, int gpus);

}  // namespace zeroplan
