// The table that plan's answer begins with, one row for each stage, and the answer on one screen.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "hwprofiles/profile.h"
#include "planner/plan/plan_file.h"
#include "planner/report/report_text.h"
#include "planner/search/search.h"

namespace zeroplan {

// The best choice of each stage, or the one closest to fitting: tokens a second, step time, memory
// and its capacity, the margin of error of such predictions, and the loss compared with the answer,
// which is marked. `few`: the answer and the next best alone. The table has at most max(`columns`,
// 80) columns; the step time is left out first. REQUIRES: result.best.
std::string StageTable(const Plan& plan, const SearchResult& result,
                       const HardwareProfile& hardware, size_t columns, bool colour,
                       bool few = false);

// The parts of a screen that the caller knows.
struct ScreenParts {
  std::string first;  // a line above the heading; "" if none
  std::string shape;  // the origin of a derived model's shape; "" if it has a name
  std::string brim;   // BrimText of planner/advice/advice.h
  // Paragraphs about the requested run: its data, its length, its price.
  std::vector<std::string> run;
  ScreenNotes notes;
};
// The answer in at most 24 lines of 80 columns: a heading, the table, the choice with its speed and
// memory, why the next best loses, what is not certain, the next command. REQUIRES: result.best.
std::string PlanScreen(const Plan& plan, const SearchResult& result, const SearchInputs& inputs,
                       const HardwareProfile& hardware, const ScreenParts& parts, size_t columns,
                       bool colour);

}  // namespace zeroplan
