// The memory and time of FSDP2: the tensors that it holds, gathers and reduces in addition to the
// model's own.
#pragma once

#include <memory>

#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_optimizer.h"

namespace zeroplan {

// The dtype of shards, gradients and states. torchtune loads parameters in 16 bit; transformers'
// Trainer casts them to fp32.
Dtype Fsdp2ShardDtype(const TorchRecipe& recipe);

// True if 4-bit weights are sharded: they are packed in a floating dtype.
bool Fsdp2ShardsNf4(const TorchPlay& play);

std::unique_ptr<TorchRuntime> MakeFsdp2(const TorchModel& model, const TorchPlay& play,
                                        TorchMemory* memory, TorchTimer* timer);

}  // namespace zeroplan
