// The questions that a comparison of machines asks.
#pragma once

#include <vector>

#include "planner/request/request.h"

namespace zeroplan {

// One PlanRequest a machine, in the order that was asked. Throws Error(kUsage) for what does not go
// with a comparison, and for names and files that are wrong, before anything is searched.
std::vector<PlanRequest> MachineQuestions(const PlanRequest& request);

}  // namespace zeroplan
