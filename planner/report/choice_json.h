// Parts that the JSON of an estimate and of a plan share. Keys are a contract (docs/metrics.md); an
// unknown value is null.
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

// "" as null: the text is unknown, or there is none.
inline nlohmann::ordered_json TextOrNull(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

// Bytes of one GPU by class, including the runtime's, and their total.
nlohmann::ordered_json GpuBytesJson(const Footprint& footprint);
// "pinned", "pageable", "total" of one host.
nlohmann::ordered_json HostBytesJson(const Footprint& footprint);
// "compute", "exposed_comm", "exposed_offload", "optimizer", "total".
nlohmann::ordered_json StepSecondsJson(const TimeEstimate& time);
// Settings that schema zeroplan.estimate/1 repeats next to the figures, because it did so before it
// had the object "choice". New settings are in "choice" alone.
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
// The settings that it repeats in "settings".
inline constexpr const SettingRow* kGroupSettings[] = {&setting::shard_group,
                                                       &setting::across_groups};

// The record of a choice: the value of each row (core/settings/setting_rows.inc) by its name.
// `recipe`: the recipe of a program other than zeroplan's executor, else null.
nlohmann::ordered_json ChoiceJson(const TrainSetup& setup, const TorchRecipe* recipe = nullptr);
// The recipe for the records of an answer's choices.
template <typename Answer>
const TorchRecipe* RecipeOf(const Answer& answer) {
  return answer.runtime->facts().has_recipe ? &answer.recipe : nullptr;
}
// A setting's value as JSON.
nlohmann::ordered_json ValueJson(const SettingValue& value);
// Sets the keys of `rows` as ChoiceJson does.
void AddRecord(std::span<const SettingRow* const> rows, const TrainSetup& setup,
               const TorchRecipe* recipe, nlohmann::ordered_json& json);
// "nvme_bytes", and the traffic and times of a step.
nlohmann::ordered_json StepFiguresJson(const ChoiceEstimate& choice);

// Memory by phase and step time by part of a PyTorch process. REQUIRES: footprint.torch.
nlohmann::ordered_json TorchPhasesJson(const TorchFootprint& torch);
// Peaks by the names of AroundPhase; null: not known.
nlohmann::ordered_json PhasesAroundJson(const TorchFootprint& torch);
nlohmann::ordered_json TorchStepJson(const TimeEstimate& time);
// The record of a choice with all predictions for it. `recipe`: as for ChoiceJson.
nlohmann::ordered_json RuntimeChoiceJson(const ChoiceEstimate& choice, const TorchRecipe* recipe);
nlohmann::ordered_json CompiledJson(TorchCompile compile);
// The settings of the recipe that are not defaults, by the names of their fields; {} if there are
// none.
nlohmann::ordered_json RecipeJson(const TorchRecipe& recipe);

// Elements of a bucket; null if the runtime has no such bucket (kAuto).
nlohmann::ordered_json ElementsJson(uint64_t elements);
// Time and cost of a whole run; null if the request has none, or if the step's time is not known.
nlohmann::ordered_json RunJson(const RunGoal& goal, const ChoiceEstimate& choice);
// For a run with interruptions. Its keys are those of kInterruptionKeys
// (planner/plan/plan_fields.h).
nlohmann::ordered_json InterruptionsJson(const InterruptedCost& cost);

// The facts of the run's data in such batches (docs/metrics.md). REQUIRES: goal.data.
nlohmann::ordered_json DataJson(const RunGoal& goal, const BatchSpec& batch);

}  // namespace zeroplan
