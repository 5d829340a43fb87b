// What to type for a change that fits.
#pragma once

#include <string>

#include "cli/plan/plan_request.h"
#include "planner/advice/smallest_change.h"

namespace zeroplan {

// `change`, which fits where `request` does not, as the user can type it: options, and those of
// `options` to leave out because they go with another choice; with --config the file's keys and
// their values, since the file decides what they say.
std::string Proposal(const PlanOptions& options, const PlanRequest& request, const Change& change);

}  // namespace zeroplan
