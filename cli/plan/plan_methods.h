// plan's comparison of methods of tuning.
#pragma once

#include "planner/request/request.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// Whether the model is a folder with weights in it, from which a run would start.
bool HasWeights(const ModelFields& fields);

// Searches and prints the comparison. Throws Error(kNothingFits) after that if no method fits, and
// as CompareMethods. REQUIRES: as CompareMethods.
void PrintComparison(const PlanRequest& request, Assumptions assumptions, bool json);

}  // namespace zeroplan
