// The columns that every table with a choice in each row begins with, and the line below a table
// that lacks columns for want of room.
#pragma once

#include <string>
#include <vector>

#include "core/settings/zero_config.h"
#include "planner/report/report_columns.h"

namespace zeroplan {

// Widths in characters that fit the cells of all rows; 0: there is no such column.
struct ChoiceWidths {
  size_t group = 0, sequence = 0, activations = 0, recompute = 6;

  void Fit(const TrainSetup& setup);
};
// Adds stage, shard groups, a GPU's share of a sequence, homes of states, parameters and
// activations, and recompute. REQUIRES: `widths` fit every setup.
void AddChoiceColumns(ReportColumns& columns, const ChoiceWidths& widths);
// The cells of these columns; none is wider than its column.
std::vector<std::string> ChoiceCells(const TrainSetup& setup, const ChoiceWidths& widths);

// The line below a table that lacks columns on a narrow page. It names them (`left_out`, the result
// of LeaveOut) and `elsewhere` ("a wider terminal and ⟦format⟧ json"), which has them. "" if no
// column is left out.
std::string LeftOutText(const std::string& left_out, const char* elsewhere, size_t columns);

}  // namespace zeroplan
