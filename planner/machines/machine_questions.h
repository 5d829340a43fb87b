// The plan requests behind a comparison of machines.
#pragma once

#include <vector>

#include "planner/request/request.h"

namespace zeroplan {

// One PlanRequest a machine, in the requested order. Throws Error(kUsage) for options that a
// comparison does not support, and for names and files that are wrong, before any search.
std::vector<PlanRequest> MachineQuestions(const PlanRequest& request);

}  // namespace zeroplan
