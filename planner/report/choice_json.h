// Parts that the JSON of an estimate and of a plan have in common. Keys are a contract
// (docs/metrics.md); what is not known is null.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "planner/estimate/estimate.h"

namespace zeroplan {

template <typename T>
nlohmann::ordered_json Nullable(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

// "" as null: not known, or nothing to say.
inline nlohmann::ordered_json TextOrNull(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

// Bytes of one GPU by class, with runtime and total.
nlohmann::ordered_json GpuBytesJson(const Footprint& footprint);
// "pinned", "pageable", "total" of one host.
nlohmann::ordered_json HostBytesJson(const Footprint& footprint);
// "compute", "exposed_comm", "exposed_offload", "optimizer", "total".
nlohmann::ordered_json StepSecondsJson(const TimeEstimate& time);
// Of which layers "checkpointing" is, and where activations lie. `recipe`: of another runtime.
nlohmann::ordered_json HomesJson(const RecomputeConfig& recompute, const TorchRecipe& recipe = {});
// Adds "shard_group" (ranks that share what the stage shards) and "across_groups" (null: there is
// one group).
void AddGroupSettings(const TrainSetup& setup, nlohmann::ordered_json& settings);
// "nvme_bytes", and what a step moves and takes.
nlohmann::ordered_json StepFiguresJson(const ChoiceEstimate& choice);

// Memory by phase and step time by part of a PyTorch process. REQUIRES: footprint.torch.
nlohmann::ordered_json TorchPhasesJson(const TorchFootprint& torch);
// By the names of AroundPhase; null: not known.
nlohmann::ordered_json PhasesAroundJson(const TorchFootprint& torch);
nlohmann::ordered_json TorchStepJson(const TimeEstimate& time);
// A choice of another runtime, with all that is predicted of it.
nlohmann::ordered_json RuntimeChoiceJson(const ChoiceEstimate& choice);
nlohmann::ordered_json CompiledJson(TorchCompile compile);
// What the recipe says beyond nothing, by its fields' names; {} for nothing.
nlohmann::ordered_json RecipeJson(const TorchRecipe& recipe);

// A bucket's elements; null where the runtime has no such bucket (kAuto).
nlohmann::ordered_json ElementsJson(uint64_t elements);
// What a whole run takes; null where no one asked, or the step's time is not known.
nlohmann::ordered_json RunJson(const RunGoal& goal, const ChoiceEstimate& choice);
// Of a run that is interrupted: its keys are those of kInterruptionKeys
// (planner/plan/plan_fields.h).
nlohmann::ordered_json InterruptionsJson(const InterruptedCost& cost);

// What the run's data comes to in such batches (docs/metrics.md). REQUIRES: goal.data.
nlohmann::ordered_json DataJson(const RunGoal& goal, const BatchSpec& batch);

}  // namespace zeroplan
