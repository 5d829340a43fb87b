// What a whole training run takes: steps times the step time, nothing else. Saving, validation and
// interruptions come on top.
#pragma once

#include <cstdint>
#include <optional>

#include "core/config/zero_config.h"

namespace zeroplan {

// What a run's cost is asked for. Unset: nobody asked.
struct RunGoal {
  std::optional<int64_t> tokens;         // to train on, in all
  std::optional<double> gpu_hour_price;  // of one GPU, in any currency
};

struct RunCost {
  int64_t steps = 0;  // the last may go beyond the tokens
  double seconds = 0;
  double gpu_hours = 0;
  std::optional<double> price;  // in the currency of the goal's
};

// REQUIRES: goal.tokens.
RunCost CostOf(const RunGoal& goal, const BatchSpec& batch, double step_seconds);

}  // namespace zeroplan
