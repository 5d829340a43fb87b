// Optimizer states that take less than fp32: which of them a request lets a search take, and what
// is known of their cost in accuracy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/zero_config.h"
#include "planner/estimate/choices.h"

namespace zeroplan {

// What ⟦allow⟧ allows beside fp32, the most exact first.
enum class LightStates : uint8_t {
  kSplitMasters,  // masters in two halves
  k8Bit,          // 8-bit moments, with fp32 masters and with what else is allowed of masters
  kBF16,          // masters in 16 bit, moments in bf16
};
inline constexpr LightStates kLightStates[] = {LightStates::kSplitMasters, LightStates::k8Bit,
                                               LightStates::kBF16};
std::string_view LightStatesName(LightStates light);  // "split-masters"
// Of the field: the names, in the enum's order.
std::vector<std::string> LightStatesNames();

// Whether a run in `dtype` has any such kind.
bool HasLightStates(LightStates light, Dtype dtype);
// fp32, and what `allowed` of these adds to it in a run of `dtype`.
std::vector<StatesKind> KindsOf(std::span<const LightStates> allowed, Dtype dtype);

// What light states cost in accuracy, as measured: the one place for such figures.
struct StatesAccuracy {
  StatesKind states;
  double loss_change_percent = 0;  // of the validation loss, against fp32 states
  std::string_view trained;        // the model, its tokens, how far seeds lie apart
};
// Of a run in `dtype`. Nothing: it was not measured.
std::optional<StatesAccuracy> MeasuredAccuracy(const StatesKind& states, Dtype dtype);
// "the same numbers as fp32 states, bit for bit"; "its cost in accuracy is not measured here".
std::string AccuracyText(const StatesKind& states, Dtype dtype);

}  // namespace zeroplan
