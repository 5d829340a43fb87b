// The goal of a run: tokens or data, price, power, and its interruptions.
#include <fmt/format.h>

#include "core/base/error.h"
#include "planner/request/data_fields.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"

namespace zeroplan {

RunGoal ResolveGoal(const GoalFields& fields, const BatchSpec& batch, const GpuProfile& gpu,
                    bool fixed_rows) {
  const bool counted = fields.data.counted != nullptr;
  if (fields.gpu_hour_price && !fields.tokens && !counted) {
    ThrowUsage(
        "⟦gpu_hour_price⟧: {} has no effect without ⟦tokens⟧; add the run's tokens, such as "
        "⟦tokens⟧ 300B",
        fields.gpu_hour_price.text);
  }
  if (fields.tokens && *fields.tokens < batch.seq_len) {
    ThrowUsage(
        "⟦tokens⟧: {} is less than one sequence of {} tokens; use all that is trained on, "
        "such as 300B",
        fields.tokens.text, batch.seq_len);
  }
  RunGoal goal = {fields.tokens, fields.gpu_hour_price};
  goal.interruptions = ResolveInterruptions(fields);
  if (counted) {
    goal.data = FactsOf(fields.data, batch, fixed_rows);
    goal.epochs = fields.data.epochs.value_or(1);
    const double sequences = SequencesOfEpochs(goal.epochs, goal.data->epoch.sequences);
    const double steps = sequences / static_cast<double>(batch.global_batch());
    if (steps > kMaxBatch) {
      ThrowUsage(
          "⟦epochs⟧: {} of {} sequences, {} a step, are {:.0f} steps; at most {} are allowed",
          goal.epochs, goal.data->epoch.sequences, batch.global_batch(), steps, kMaxBatch);
    }
    goal.tokens = static_cast<int64_t>(sequences) * batch.seq_len;
  }
  if (gpu.power) {
    goal.gpu_watts = gpu.power->limit.value;
  } else if (gpu.board_power) {
    goal.gpu_watts = gpu.board_power->value;
  }
  return goal;
}

std::optional<Interruptions> ResolveInterruptions(const GoalFields& fields) {
  const auto goes_with_rate = [&](const char* field, const Given<double>& given) {
    if (!given || fields.interruptions) return;
    ThrowUsage(
        "{}: {} has no effect without ⟦interruptions⟧; add how often the run is interrupted, such "
        "as ⟦interruptions⟧ 0.1/h",
        field, given.text);
  };
  goes_with_rate("⟦notice⟧", fields.notice);
  goes_with_rate("⟦restart_time⟧", fields.restart_time);
  if (!fields.interruptions) return std::nullopt;
  Interruptions asked{.rate = *fields.interruptions, .notice_seconds = fields.notice};
  asked.restart_seconds = fields.restart_time.value_or(asked.restart_seconds);
  return asked;
}

void AssumeRestart(const Request& request, Assumptions& assumptions) {
  const GoalFields& goal = request.goal;
  if (!ResolveInterruptions(goal)) return;
  const Runtime& runtime = request.runtime.of();
  if (!runtime.facts().predicts_saves) {
    ThrowUsage(
        "⟦interruptions⟧: {} is not allowed with {}: saves of zeroplan's own executor alone are "
        "predicted; leave it out, or use ⟦runtime⟧ zeroplan",
        goal.interruptions.text, runtime.name());
  }
  if (goal.restart_time) return;
  assumptions.assumed.push_back(
      fmt::format("⟦restart_time⟧ {:g}min", Interruptions{}.restart_seconds / 60));
}

AsyncSave AsyncSaveOf(const Request& request) {
  if (request.settings.async_save) return *request.settings.async_save;
  return request.goal.interruptions ? AsyncSave::kIfItFits : AsyncSave::kOff;
}

void AssumeAsyncSave(const Request& request, Assumptions& assumptions) {
  if (request.settings.async_save || !request.goal.interruptions) return;
  assumptions.assumed.emplace_back("⟦async_save⟧ auto");
}

}  // namespace zeroplan
