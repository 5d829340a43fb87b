// Phases around the steps, in which a run may run out of memory although its steps fit: loading,
// evaluation, saving and resuming. They follow transformers' Trainer 5.24 and accelerate 1.15, with
// safetensors 0.8, DeepSpeed 0.19.6 and PyTorch 2.11. See docs/runtimes.md, "Around the step".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/footprint.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_model.h"

namespace zeroplan {

// True if the Trainer runs the steps of the recipe's code.
bool RunsTrainer(const TorchRecipe& recipe);

// A run whose steps have been simulated.
struct PlayedRun {
  const TorchModel& model;
  const TorchPlay& play;
  // GPU memory: the peak of initialisation, the memory in use after it, and the memory in use
  // between steps.
  uint64_t init_peak = 0, after_init = 0, between_steps = 0;
  uint64_t context = 0;
  // The same for the host memory of a process, including Python.
  uint64_t host_init_peak = 0, host_after_init = 0, host_between_steps = 0;
};

// Loading, saving and resuming under each runtime. Without the Trainer: DeepSpeed's engine is
// covered, other runtimes give nothing.
std::vector<AroundPeak> DeepSpeedAround(const PlayedRun& run);
std::vector<AroundPeak> Fsdp2Around(const PlayedRun& run);
std::vector<AroundPeak> DdpAround(const PlayedRun& run, Dtype held);

// Gathers of the whole model outside the steps, between two of them.
std::vector<AroundPeak> DeepSpeedGathers(const PlayedRun& run);
std::vector<AroundPeak> Fsdp2Gathers(const PlayedRun& run);

// Plays Trainer.evaluate after the steps, with the recipe's per_device_eval_batch_size, 8 by
// default, and with 1. `engine` and `memory` are those of the steps.
AroundPeak PlayEvaluation(const PlayedRun& run, const TorchRun& of_steps, TorchRuntime* engine,
                          TorchMemory* memory);

// Sets why_not and instead_fits of a phase on nodes of `capacity`.
void JudgeAround(const Capacity& capacity, int ranks_per_node, AroundPeak* peak);
// per_device_eval_batch_size if its default does not fit and 1 does; else unset.
std::optional<int64_t> EvalBatchToSay(const Footprint& footprint);
// True if the model is to be loaded with device_map={"": "cpu"}.
bool QuantizesOnHost(const Footprint& footprint);
// A sentence or two: the memory of the phase, the reason, and the setting that decides.
std::string AroundText(const AroundPeak& peak, int ranks_per_node);

}  // namespace zeroplan
