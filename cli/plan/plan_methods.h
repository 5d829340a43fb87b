// plan's comparison of methods of tuning.
#pragma once

#include "cli/plan/plan_config.h"
#include "planner/request/plan_answer.h"
#include "planner/request/request.h"
#include "planner/request/resolve.h"

namespace zeroplan {

// Whether the model is a folder with weights in it, from which a run would start.
bool HasWeights(const ModelFields& fields);

// Whether 'train' refuses the plan because the model has no weights here, which adapters need, and
// conversations for a preset.
bool LacksWeights(const ModelFields& fields, const PlanAnswer& answer);

// Searches and prints the comparison. Throws Error(kNothingFits) after that if no method fits, and
// as CompareMethods. REQUIRES: as CompareMethods.
void PrintComparison(PlanOptions options, Assumptions assumptions);

}  // namespace zeroplan
