// What plan's answer opens with: one row a stage.
#pragma once

#include <cstddef>
#include <string>

#include "hwprofiles/profile.h"
#include "planner/plan/plan_file.h"
#include "planner/search/search.h"

namespace zeroplan {

// The best of each stage, or what of it comes closest to fitting: tokens a second, step, memory of
// what there is, how far such predictions were off, and what it loses to the answer, which is
// marked. In at most `columns`, but 79. REQUIRES: result.best.
std::string StageTable(const Plan& plan, const SearchResult& result,
                       const HardwareProfile& hardware, size_t columns, bool colour);

}  // namespace zeroplan
