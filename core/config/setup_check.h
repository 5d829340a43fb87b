// What is wrong with a setup, so that a reader can add the line of the key.
#pragma once

#include <optional>
#include <string>

#include "core/config/zero_config.h"

namespace zeroplan {

struct SetupProblem {
  std::string key;      // "zero_optimization.offload_optimizer.ratio"
  std::string message;  // value, what is allowed, fix
};

// The key of a problem with grad_accum_dtype.
inline constexpr const char* kGradAccumKey = "data_types.grad_accum_dtype";

// The first problem of a setup, if any. ValidateSetup throws it.
std::optional<SetupProblem> FindSetupProblem(const TrainSetup& setup);
// The problem of its precision alone.
std::optional<SetupProblem> FindPrecisionProblem(const PrecisionConfig& precision);

}  // namespace zeroplan
