// Optimizer states smaller than fp32: the kinds that a request allows a search to use, and their
// measured cost in accuracy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/settings/zero_config.h"
#include "planner/estimate/choices.h"

namespace zeroplan {

// The states that ⟦allow⟧ allows in addition to fp32, the most exact first.
enum class LightStates : uint8_t {
  kSplitMasters,  // masters in two halves
  k8Bit,          // 8-bit moments, with fp32 masters and with any other masters that are allowed
  kBF16,          // masters in 16 bit, moments in bf16
};
inline constexpr LightStates kLightStates[] = {LightStates::kSplitMasters, LightStates::k8Bit,
                                               LightStates::kBF16};
std::string_view LightStatesName(LightStates light);  // "split-masters"
// The values of the field, in the enum's order.
std::vector<std::string> LightStatesNames();

// Whether a run in `dtype` supports that kind.
bool HasLightStates(LightStates light, Dtype dtype);
// fp32, and the kinds that `allowed` adds to it in a run of `dtype`.
std::vector<StatesKind> KindsOf(std::span<const LightStates> allowed, Dtype dtype);

// The measured cost of light states in accuracy: the one place for such figures.
struct StatesAccuracy {
  StatesKind states;
  double loss_change_percent = 0;  // change of the validation loss, against fp32 states
  std::string_view trained;        // the model, its tokens, the spread over seeds
};
// The figures of a run in `dtype`. Nothing: not measured.
std::optional<StatesAccuracy> MeasuredAccuracy(const StatesKind& states, Dtype dtype);
// "the same numbers as fp32 states, bit for bit"; "its cost in accuracy is not measured here".
std::string AccuracyText(const StatesKind& states, Dtype dtype);

}  // namespace zeroplan
