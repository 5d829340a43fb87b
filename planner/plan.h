// The choice that a search made, with everything needed to run it and to say why.
#pragma once

#include <string>
#include <vector>

#include "core/lowering/lower.h"
#include "planner/search.h"

namespace zeroplan {

struct Plan {
  ModelSpec model;
  Cluster cluster;
  TrainSetup setup;       // no kAuto left where DeepSpeed's config has a number for it
  LowerOptions lower;     // what the program is lowered with
  ChoiceEstimate choice;  // of `setup`
  Objective objective = Objective::kThroughput;
  SearchStats stats;
  // Why this choice, what the others lose, where the answer flips: one paragraph each, unwrapped.
  std::vector<std::string> advice;
};

}  // namespace zeroplan
