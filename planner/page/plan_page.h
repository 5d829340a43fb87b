// A plan as a page: the output of `plan`, in pictures.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/advice/advice.h"
#include "planner/estimate/estimate.h"
#include "planner/page/html.h"
#include "planner/plan/plan_file.h"

namespace zeroplan {

// An estimate as a page: the output of `estimate`, in pictures.

// `inputs` must be those of `estimate`. Their cost model gives the memory over a step of the
// fastest choice that fits, or, if none fits, of the one that needs least.
Page EstimatePage(const Estimate& estimate, const EstimateInputs& inputs, const PageOrigin& origin);

struct PlanPageInputs {
  const Plan& plan;
  const PlanReport& report;
  std::vector<JudgedChoice> judged;  // Searcher::Judged
  // The link between the plan's GPUs. Unset: there is one GPU.
  std::optional<ScarcestLink> link;
  const CostModel& costs;  // cost model of the plan's cluster
  const HardwareProfile& hardware;
  std::string hw;      // the machine as typed; "": it was not
  bool quick = false;  // the changes that would flip the answer were not searched
};

Page PlanPage(const PlanPageInputs& inputs, const PageOrigin& origin);

// ---- for tests ----

// The ranges of the answer, from the report's claims.
Picture FlipPicture(const PlanPageInputs& inputs);

}  // namespace zeroplan
