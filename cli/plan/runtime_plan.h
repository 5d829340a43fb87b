// zeroplan plan --runtime deepspeed|fsdp2: the choice that is best for that program.
#pragma once

#include "cli/plan/plan_options.h"
#include "cli/plan/runtime_estimate.h"

namespace zeroplan {

// The program that `options` ask to plan for: --runtime's; without it DeepSpeed where --out wants a
// config, else zeroplan's own executor (nothing). Throws Error(kUsage) where --compile has no
// program that it goes with.
std::optional<OtherRuntime> RuntimeOf(const PlanOptions& options);

// Searches, prints, and writes what --out and --plan-out ask for. Throws Error(kNothingFits) that
// names a change that fits, where one is found.
void RunRuntimePlan(const PlanOptions& options, OtherRuntime runtime);

}  // namespace zeroplan
