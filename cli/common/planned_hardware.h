// The hardware that a plan was made for.
#pragma once

#include <string>

#include "hwprofiles/profile.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {

// The profile `wanted`, a name or file; empty: the plan's, of its file where that is still there.
// The plan's has the links that it was made for. Throws Error(kUsage) where the plan's is neither
// built in nor a file, and for links that it cannot have.
HardwareProfile PlannedHardware(const PlanFile& plan, const std::string& wanted = "");

// Whether the plan's own profile is built in, or a file that is still there.
bool KnowsPlannedHardware(const PlanFile& plan);

}  // namespace zeroplan
