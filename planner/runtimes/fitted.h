// What of the runtimes' memory and time cannot be counted from their code, and was fitted to
// measured runs: all of it is here. docs/runtimes.md has the runs, and the errors if some are left
// out of the fit.
#pragma once

#include <cstdint>

#include "planner/footprint.h"

namespace zeroplan {

// Errors beside measured runs (docs/runtimes.md; a test holds these to the runs), as shares: the
// largest of memory; the median and the largest of step times, each with constants fitted to the
// other models' runs.
struct RuntimeMargins {
  int runs;
  double allocated, reserved, device, host;
  int timed_runs;
  double time_median, time_worst;
  // Choices of plan --runtime, run afterwards.
  int chosen_runs;
  double chosen_median, chosen_worst;
  // DeepSpeed's stage 3 with recompute and without offload, which is in none of the times above:
  // its largest error with constants fitted to the other models' runs; the least and the most that
  // a run took of its prediction.
  int recompute_runs = 0;
  double recompute_worst = 0, recompute_fastest = 0, recompute_slowest = 0;
};
inline constexpr RuntimeMargins kDeepSpeedMargins{
    80, 0.041, 0.102, 0.097, 0.0746, 45, 0.0420, 0.198, 30, 0.0356, 0.170, 5, 0.472, 0.748, 1.453};
inline constexpr RuntimeMargins kFsdp2Margins{33,     0.0037, 0.0395, 0.0897, 0.0557, 20,
                                              0.0510, 0.1030, 13,     0.0631, 0.195};

// What of the runtimes' time follows neither from their code nor from the machine's profile. The
// host's Python is as fast as those of the runs; one choice at stage 3 took 1.38 times as long on
// one of them as on another.
// Fitted, but for those that are assumed, to the timed runs of tests/data/runtimes;
// docs/runtimes.md says how, and what is off if the runs of a group are left out.
struct TimeConstants {
  // Seconds that the Python thread takes. PyTorch:
  double launch = 13.3e-6;        // for an operation of eager code
  double compiled_launch = 5e-6;  // for a kernel of compiled code; assumed
  double graph = 776e-6;          // to enter a compiled layer, forward or backward
  double checkpoint = 1.2e-3;     // for a layer within torch.utils.checkpoint, eager
  double collective = 60e-6;      // to issue a collective; assumed
  double read_back = 20e-6;       // to ask the GPU for a number; assumed
  // DeepSpeed, stages 1 and 2:
  double gradient_hook = 20e-6;        // for each gradient
  double offloaded_gradient = 300e-6;  // and if it goes to the host
  // DeepSpeed, stage 3:
  double module_hooks = 440e-6;          // for a module, forward or backward
  double module_graph = 465e-6;          // to enter it, if it is compiled
  double gathered_param = 150e-6;        // for each gathered parameter, and twice for each gather
  double partitioned_gradient = 185e-6;  // for each gradient
  double offloaded_shard = 885e-6;       // and if its shard goes to the host
  // FSDP2: a group's gather or reduction, set by hand to the runs of gpt2-large, gpt3-1.3b and
  // gpt2-xl that wait for it; a parameter in clipping and update, assumed.
  double group_hook = 0.8e-3, dtensor = 20e-6;

  // Shares of the memory's rate that PyTorch's pointwise, norm and reduction kernels reach.
  double eager_memory = 0.67, compiled_memory = 0.95;
  // scaled_dot_product_attention beside the profile's rates: the same. Runs of older kernels have
  // less.
  double attention = 1;
  // TorchClock::Overlap's first_kernel, with NCCL as PyTorch starts it.
  double beside_collective = 0.39;
  // What DeepSpeed's CPU Adam reaches of the host memory's rate under an Adam-shaped loop; and
  // clip_grad_norm_ on the host.
  double cpu_adam = 0.83, cpu_clip = 0.145;
};

// Resident set of Python with PyTorch and DeepSpeed, without tensors.
uint64_t HostBaseBytes(int stage, TorchPhase phase);

// Device memory in use less what the allocator reserved: CUDA context, modules, NCCL's buffers.
uint64_t ContextBytes(int stage, int gpus);

}  // namespace zeroplan
