// FSDP2 as far as memory and time go: what it holds, gathers and reduces around a model's own
// tensors.
#pragma once

#include <memory>

#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_optimizer.h"

namespace zeroplan {

// The dtype of shards, gradients and states. What torchtune loads is in 16 bit; transformers'
// Trainer casts to fp32.
Dtype Fsdp2ShardDtype(const TorchRecipe& recipe);

std::unique_ptr<TorchRuntime> MakeFsdp2(const TorchModel& model, const TorchPlay& play,
                                        TorchMemory* memory, TorchTimer* timer);

}  // namespace zeroplan
