// What PyTorch's FSDP2 (fully_shard) takes of memory and time, from its own code.
#pragma once

#include <cstdint>
#include <optional>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/footprint.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

// fully_shard on every layer and on the rest, parameters in fp32, MixedPrecisionPolicy with
// param_dtype of 16 bit. Of `setup`:
//   stage 3: reshard_after_forward; stage 2: not
//   optimizer and parameters on the CPU together: CPUOffloadPolicy
//   fp32_reduction: reduce_dtype fp32, else the parameters' 16 bit
//   recompute: none; full, torch.utils.checkpoint around every layer; selective, torchtitan's
//     per-op policy within it (TorchRun::saves_products)
// Other ZeRO keys have no meaning for it.
struct Fsdp2Run {
  ModelSpec model;
  TrainSetup setup;
  // Layers under torch.compile, and the loss.
  bool compiled = false, compiled_loss = false;
  std::optional<uint64_t> limit_bytes;  // as DeepSpeedRun's
};

// Whether that policy is modelled: of products with a bias (aten.addmm) it keeps none, which is
// not.
bool CanSaveProducts(const ModelSpec& model);

// Rank 0's memory with PyTorch 2.11, torch.optim.AdamW(fused=True) and clip_grad_norm_. Throws
// Error(kUsage) for what is not modelled, naming the option. `timer`, if given, is played along.
TorchFootprint Fsdp2Footprint(const Fsdp2Run& run, TorchTimer* timer = nullptr);

}  // namespace zeroplan
