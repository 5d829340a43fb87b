// The hardware that a plan was made for.
#pragma once

#include <string>

#include "hwprofiles/profile.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {

// The profile `wanted`, a name or file; empty: the plan's, from its file if that still exists. The
// plan's profile gets the links that it was made for. Throws Error(kUsage) if the plan's profile is
// neither built in nor a file, and for links that it cannot have.
HardwareProfile PlannedHardware(const PlanFile& plan, const std::string& wanted = "");

// Whether the plan's own profile is built in, or a file that still exists.
bool KnowsPlannedHardware(const PlanFile& plan);

}  // namespace zeroplan
