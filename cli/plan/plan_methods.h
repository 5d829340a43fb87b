// plan's comparison of methods of tuning.
#pragma once

#include "cli/plan/plan_config.h"
#include "planner/request/plan_answer.h"
#include "planner/request/request.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// Whether the model is a folder with weights in it, from which a run would start.
bool HasWeights(const ModelFields& fields);

// Whether 'train' refuses the plan as the model is a preset, without weights, and adapters or
// conversations need some.
bool LacksWeights(const ModelFields& fields, const PlanAnswer& answer);

// Searches and prints the comparison. Throws Error(kNothingFits) after that if no method fits, and
// as CompareMethods. REQUIRES: as CompareMethods.
void PrintComparison(PlanOptions options, Assumptions assumptions);

}  // namespace zeroplan
