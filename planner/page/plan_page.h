// A plan as a page: what `plan` prints, in pictures.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/advice/advice.h"
#include "planner/estimate/estimate.h"
#include "planner/page/html.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {

// An estimate as a page: what `estimate` prints, in pictures.

// `inputs` are those that `estimate` was made of; its cost model gives the memory over a step of
// the fastest choice that fits, or, where none does, of the one that takes least.
Page EstimatePage(const Estimate& estimate, const EstimateInputs& inputs, const PageOrigin& origin);

struct PlanPageInputs {
  const Plan& plan;
  const PlanReport& report;
  std::vector<JudgedChoice> judged;  // Searcher::Judged
  // Between the plan's GPUs. Unset: there is one.
  std::optional<ScarcestLink> link;
  const CostModel& costs;  // of the plan's cluster
  bool quick = false;      // nobody looked for what would change the answer
};

Page PlanPage(const PlanPageInputs& inputs, const PageOrigin& origin);

// ---- for tests ----

// Where the answer changes, by what the report's claims say.
Picture FlipPicture(const PlanPageInputs& inputs);

}  // namespace zeroplan
