// Phases around the steps, where a run can die that its steps would let live: loading, evaluation,
// saving and resuming, as transformers' Trainer 5.24 and accelerate 1.15 go through them with
// safetensors 0.8, DeepSpeed 0.19.6 and PyTorch 2.11. docs/runtimes.md, "Around the step".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/footprint.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_model.h"

namespace zeroplan {

// Whether the Trainer runs the steps of such code.
bool RunsTrainer(const TorchRecipe& recipe);

// What is known of a run whose steps have been played.
struct PlayedRun {
  const TorchModel& model;
  const TorchPlay& play;
  // Of the GPU: the peak of initialisation, what is left of it, and what lives between steps.
  uint64_t init_peak = 0, after_init = 0, between_steps = 0;
  uint64_t context = 0;
  // Of a process's host, Python included: the same.
  uint64_t host_init_peak = 0, host_after_init = 0, host_between_steps = 0;
};

// Loading, saving and resuming under each runtime. Of DeepSpeed without the Trainer what its engine
// does, of others nothing.
std::vector<AroundPeak> DeepSpeedAround(const PlayedRun& run);
std::vector<AroundPeak> Fsdp2Around(const PlayedRun& run);
std::vector<AroundPeak> DdpAround(const PlayedRun& run, Dtype held);

// Trainer.evaluate after the steps, with the recipe's per_device_eval_batch_size, 8 by default, and
// with 1. `engine` and `memory` are those of the steps.
AroundPeak PlayEvaluation(const PlayedRun& run, const TorchRun& of_steps, TorchRuntime* engine,
                          TorchMemory* memory);

// Sets why_not and instead_fits of a phase on nodes of that capacity.
void JudgeAround(const Capacity& capacity, int ranks_per_node, AroundPeak* peak);
// per_device_eval_batch_size where its default does not fit and 1 does; else unset.
std::optional<int64_t> EvalBatchToSay(const Footprint& footprint);
// A sentence or two: what it takes, why, and the setting that decides.
std::string AroundText(const AroundPeak& peak, int ranks_per_node);

}  // namespace zeroplan
