// The table that plan's answer begins with: one row for each stage.
#pragma once

#include <cstddef>
#include <string>

#include "hwprofiles/profile.h"
#include "planner/plan/plan_file.h"
#include "planner/search/search.h"

namespace zeroplan {

// The best choice of each stage, or the one closest to fitting: tokens a second, step time, memory
// and its capacity, the error of such predictions in measured runs, and the loss compared with the
// answer, which is marked. The table has at most max(`columns`, 79) columns. REQUIRES: result.best.
std::string StageTable(const Plan& plan, const SearchResult& result,
                       const HardwareProfile& hardware, size_t columns, bool colour);

}  // namespace zeroplan
