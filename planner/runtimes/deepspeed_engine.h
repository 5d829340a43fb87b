// DeepSpeed's engine and ZeRO optimizers as far as memory and time go: what they hold, what they
// make and free around a model's own tensors, and what they run.
#pragma once

#include <memory>

#include "core/config/zero_config.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_timer.h"

namespace zeroplan {

// Streams beside the compute stream.
inline constexpr int kReduceStream = 1, kGatherStream = 2;
// Bytes of a gradient's element that looking for infinities reads and writes, and its kernels
// (stage_1_and_2.py, _has_inf_or_nan: a copy in fp32, isnan, isinf, or, as fp32, max).
inline constexpr double kOverflowBytes = 36;
inline constexpr int kOverflowKernels = 9;
// A norm of a copy in fp64 (get_grad_norm_direct).
inline constexpr double kNormBytes = 18;
inline constexpr int kNormKernels = 3;
// FusedAdam: gradient read, master and two states both ways, in fp32.
inline constexpr double kAdamBytes = 28;

// The engine of each stage.
std::unique_ptr<TorchRuntime> MakeStages0To2(const TorchModel& model, const TrainSetup& setup,
                                             TorchMemory* memory, TorchTimer* timer);
std::unique_ptr<TorchRuntime> MakeStage3(const TorchModel& model, const TrainSetup& setup,
                                         TorchMemory* memory, TorchTimer* timer);

}  // namespace zeroplan
