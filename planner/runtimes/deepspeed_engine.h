// DeepSpeed's engine and ZeRO optimizers as far as memory and time go: what they hold, what they
// make and free around a model's own tensors, and what they run.
#pragma once

#include <memory>

#include "core/config/zero_config.h"
#include "planner/runtimes/torch_runtime.h"

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

// The pointers must outlive it. Rank 0 of setup.batch.world_size.
std::unique_ptr<TorchRuntime> MakeDeepSpeedEngine(const TorchModel& model, const TrainSetup& setup,
                                                  TorchMemory* memory, TorchTimer* timer);
// The engine of each stage, in a file of its own.
std::unique_ptr<TorchRuntime> MakeStage0(const TorchModel& model, const TrainSetup& setup,
                                         TorchMemory* memory, TorchTimer* timer);
std::unique_ptr<TorchRuntime> MakeStage1And2(const TorchModel& model, const TrainSetup& setup,
                                             TorchMemory* memory, TorchTimer* timer);
std::unique_ptr<TorchRuntime> MakeStage3(const TorchModel& model, const TrainSetup& setup,
                                         TorchMemory* memory, TorchTimer* timer);

}  // namespace zeroplan
