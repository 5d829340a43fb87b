#include "planner/estimate/light_states.h"

#include <fmt/format.h>

#include <algorithm>

namespace zeroplan {

std::string_view LightStatesName(LightStates light) {
  constexpr std::string_view kNames[] = {"split-masters", "8bit-states", "bf16-states"};
  return kNames[static_cast<size_t>(light)];
}

std::vector<std::string> LightStatesNames() {
  std::vector<std::string> names;
  for (const LightStates light : kLightStates) names.emplace_back(LightStatesName(light));
  return names;
}

bool HasLightStates(LightStates light, Dtype dtype) {
  switch (light) {
    case LightStates::kSplitMasters:
      return dtype == Dtype::kBF16;
    case LightStates::k8Bit:
      return true;
    case LightStates::kBF16:
      return dtype != Dtype::kF32;
  }
  return false;
}

std::vector<StatesKind> KindsOf(std::span<const LightStates> allowed, Dtype dtype) {
  const auto has = [&](LightStates light) {
    return HasLightStates(light, dtype) &&
           std::find(allowed.begin(), allowed.end(), light) != allowed.end();
  };
  const bool split = has(LightStates::kSplitMasters), bf16 = has(LightStates::kBF16);
  std::vector<StatesKind> kinds = {{}};
  if (split) kinds.push_back({MasterWeights::kSplit, Dtype::kF32});
  if (bf16) kinds.push_back({MasterWeights::kParam, Dtype::kBF16});
  if (!has(LightStates::k8Bit)) return kinds;
  kinds.push_back({MasterWeights::kFp32, Dtype::kDynamic8});
  if (split) kinds.push_back({MasterWeights::kSplit, Dtype::kDynamic8});
  if (bf16) kinds.push_back({MasterWeights::kParam, Dtype::kDynamic8});
  return kinds;
}

std::optional<StatesAccuracy> MeasuredAccuracy(const StatesKind& states, Dtype dtype) {
  // Against fp32 states of the same seed, in bf16 (docs/optimizer-states.md).
  constexpr std::string_view kTrained =
      "GPT-2 124M, 64M tokens of text, one seed; seeds of fp32 states lie 3.1 % apart";
  static const std::vector<StatesAccuracy> measured = {
      {{MasterWeights::kParam, Dtype::kBF16}, 0.79, kTrained},
      {{MasterWeights::kFp32, Dtype::kDynamic8}, 0.12, kTrained},
      {{MasterWeights::kParam, Dtype::kDynamic8}, 0.24, kTrained},
  };
  if (dtype != Dtype::kBF16) return std::nullopt;
  // Split masters have the bits of fp32 masters.
  StatesKind same = states;
  if (same.masters == MasterWeights::kSplit) same.masters = MasterWeights::kFp32;
  const auto found = std::find_if(measured.begin(), measured.end(),
                                  [&](const StatesAccuracy& row) { return row.states == same; });
  return found == measured.end() ? std::nullopt : std::optional(*found);
}

std::string AccuracyText(const StatesKind& states, Dtype dtype) {
  if (states.moments == Dtype::kF32 && states.masters != MasterWeights::kParam) {
    return "the same numbers as fp32 states, bit for bit";
  }
  if (const std::optional<StatesAccuracy> measured = MeasuredAccuracy(states, dtype)) {
    return fmt::format("validation loss {:+.2g} % against fp32 states ({})",
                       measured->loss_change_percent, measured->trained);
  }
  return "its cost in accuracy is not measured here";
}

}  // namespace zeroplan
