// Converts answers to the structs of the public header.
#pragma once

#include <zeroplan/zeroplan.h>

#include <string>
#include <vector>

#include "planner/request/plan_answer.h"

namespace zeroplan {

// Text of the planner's with its fields named as options.
std::vector<std::string> Named(const std::vector<std::string>& texts);

// `assumed`, `notes` and `json` are left empty.
v1::Estimate EstimateOf(const Estimate& estimate);
// `training`, `largest` and `json` are left empty.
v1::Plan PlanOf(const PlanAnswer& answer);
// Unset where the goal has no tokens, or the time is not known.
std::optional<v1::Training> TrainingOf(const RunGoal& goal, const ChoiceEstimate& choice);

}  // namespace zeroplan
