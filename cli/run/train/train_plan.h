// train --plan: what the plan decides, and what may stand beside it on the command line.
#pragma once

#include <string>

#include "planner/plan/plan_file.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// Reads the plan `file`. Throws Error(kUsage) for --gpus that differs, and for --model or --params
// that differ in any dimension.
PlanFile ResolvePlan(const std::string& file, const Request& options, Assumptions& assumptions);

}  // namespace zeroplan
