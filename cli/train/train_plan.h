// train --plan: what the plan decides, and what may stand beside it on the command line.
#pragma once

#include <string>

#include "cli/common/common_options.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {

// Reads the plan `file`. Throws Error(kUsage) for any option beside it that the plan decides (`lr`:
// of --lr), for --gpus that differs, and for --model or --params that differ in any dimension.
PlanFile ResolvePlan(const std::string& file, const CommonOptions& options, const std::string& lr,
                     Assumptions& assumptions);

}  // namespace zeroplan
