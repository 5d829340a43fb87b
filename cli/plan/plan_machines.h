// plan of several machines: the best plan of each, in one table.
#pragma once

#include "cli/plan/plan_config.h"

namespace zeroplan {

// Throws Error(kUsage) for options that write one plan, Error(kNothingFits) if no machine is within
// the limits.
void PrintMachines(PlanOptions options);

}  // namespace zeroplan
