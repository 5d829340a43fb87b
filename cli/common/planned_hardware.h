// The hardware that a plan was made for.
#pragma once

#include <string>

#include "hwprofiles/profile.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {

// The profile `wanted`, a name or file; empty: the plan's. The latter has the links that the plan
// was made for. Throws Error(kUsage) where the plan's is not built in, and for links that it cannot
// have.
HardwareProfile PlannedHardware(const PlanFile& plan, const std::string& wanted = "");

// Whether the plan's own profile is built in.
bool KnowsPlannedHardware(const PlanFile& plan);

}  // namespace zeroplan
