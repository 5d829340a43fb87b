// The choice that a search made, with everything needed to run it and to say why.
#pragma once

#include <string>
#include <vector>

#include "core/lowering/lower.h"
#include "planner/search/search.h"

namespace zeroplan {

struct Plan {
  const Runtime* runtime = &OwnExecutor();
  TorchCompile compile;
  ModelSpec model;
  Cluster cluster;
  TrainSetup setup;       // nothing kAuto
  LowerOptions lower;     // of programs: what they are lowered with
  ChoiceEstimate choice;  // of `setup`
  Objective objective = Objective::kThroughput;
  SearchStats stats;
  // Why this choice, what the others lose, where the answer flips: one paragraph each, unwrapped.
  std::vector<std::string> advice;
};

// `program.setup` with numbers in place of kAuto that lower to the same program.
TrainSetup ResolveAuto(const Program& program);

// The plan of a search's best choice, advice apart. REQUIRES: result.best.
Plan MakePlan(const ChoiceSearch& searcher, const SearchResult& result);

}  // namespace zeroplan
