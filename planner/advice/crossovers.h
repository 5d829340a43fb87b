// Lines about the effects of another bandwidth between the GPUs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "planner/advice/advice.h"
#include "planner/search/search.h"

namespace zeroplan {

// Calls `add` with the lines about the scarcest link of the plan's GPUs: each crossover, or that
// there is none, or that it is not known; and stage 2 against stage 3, where these leave it open.
// REQUIRES: `now`, the best of `result`, has several GPUs; the objective is throughput.
void AddCrossoverLines(ChoiceSearch& searcher, const SearchResult& result, const Found& now,
                       const HardwareProfile& hardware, const std::function<void(AdviceLine)>& add);

}  // namespace zeroplan
