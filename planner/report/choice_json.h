// Parts that the JSON of an estimate and of a plan have in common. Keys are a contract
// (docs/metrics.md); what is not known is null.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "core/settings/settings.h"
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
// The settings whose values schema zeroplan.estimate/1 has had beside the figures since before it
// had "choice". New ones are in that alone.
inline constexpr const SettingRow* kEstimateSettings[] = {&setting::stage,
                                                          &setting::offload_optimizer,
                                                          &setting::offload_ratio,
                                                          &setting::offload_param,
                                                          &setting::pin_memory,
                                                          &setting::checkpointing,
                                                          &setting::checkpoint_every,
                                                          &setting::checkpoint_layers,
                                                          &setting::checkpointing_above,
                                                          &setting::offload_activations,
                                                          &setting::offload_activation_layers,
                                                          &setting::micro_batch,
                                                          &setting::grad_accum,
                                                          &setting::sequence_ranks,
                                                          &setting::gpus,
                                                          &setting::dtype,
                                                          &setting::grad_accum_dtype,
                                                          &setting::communication_dtype,
                                                          &setting::master_weights,
                                                          &setting::optimizer_states,
                                                          &setting::matmul_dtype,
                                                          &setting::fp8_recipe,
                                                          &setting::fp8_least_side};
// The same within "settings".
inline constexpr const SettingRow* kGroupSettings[] = {&setting::shard_group,
                                                       &setting::across_groups};

// The record of a choice: the value of each row (core/settings/setting_rows.inc) by its name.
// `recipe`: of a program other than zeroplan's executor, else null.
nlohmann::ordered_json ChoiceJson(const TrainSetup& setup, const TorchRecipe* recipe = nullptr);
// The recipe for the records of an answer's choices.
template <typename Answer>
const TorchRecipe* RecipeOf(const Answer& answer) {
  return answer.runtime->facts().has_recipe ? &answer.recipe : nullptr;
}
// The value as JSON.
nlohmann::ordered_json ValueJson(const SettingValue& value);
// Sets the keys of `rows` as ChoiceJson does.
void AddRecord(std::span<const SettingRow* const> rows, const TrainSetup& setup,
               const TorchRecipe* recipe, nlohmann::ordered_json& json);
// "nvme_bytes", and what a step moves and takes.
nlohmann::ordered_json StepFiguresJson(const ChoiceEstimate& choice);

// Memory by phase and step time by part of a PyTorch process. REQUIRES: footprint.torch.
nlohmann::ordered_json TorchPhasesJson(const TorchFootprint& torch);
// By the names of AroundPhase; null: not known.
nlohmann::ordered_json PhasesAroundJson(const TorchFootprint& torch);
nlohmann::ordered_json TorchStepJson(const TimeEstimate& time);
// The record of a choice with all that is predicted of it. `recipe` as ChoiceJson.
nlohmann::ordered_json RuntimeChoiceJson(const ChoiceEstimate& choice, const TorchRecipe* recipe);
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
