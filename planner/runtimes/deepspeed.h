// What DeepSpeed 0.19 takes of memory and time, from its own code: a model of that program, not of
// zeroplan's.
#pragma once

#include <cstdint>
#include <optional>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/footprint.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

// What DeepSpeed trains. `setup.zero` is as its config has it: what that leaves out is DeepSpeed's
// default (core/config/reader_state.h), not zeroplan's; a size of kAuto too.
struct DeepSpeedRun {
  ModelSpec model;
  TrainSetup setup;
  // Layers under torch.compile, and the loss.
  bool compiled = false, compiled_loss = false;
  // The allocator's limit (torch.cuda.set_per_process_memory_fraction, or the card's memory less
  // context): it empties its cache rather than exceed it. None: unlimited.
  std::optional<uint64_t> limit_bytes;
};

// Rank 0's memory. 16-bit training with Adam in fp32, parameters made in 16 bit on the GPU (at
// stage 3 under zero.Init). Throws Error(kUsage) for what is not modelled, naming the key: fp32,
// states on NVMe, selective recompute, segments of several layers, fp32 sums or reduction of
// gradients. `timer`, if given, is played along.
TorchFootprint DeepSpeedFootprint(const DeepSpeedRun& run, TorchTimer* timer = nullptr);

}  // namespace zeroplan
