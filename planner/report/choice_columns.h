// The first columns of every table with a choice in each row, and the line below a table that was
// cut.
#pragma once

#include <string>
#include <vector>

#include "core/settings/zero_config.h"
#include "planner/report/report_columns.h"

namespace zeroplan {

// Characters that the cells of all rows want; 0: there is no such column.
struct ChoiceWidths {
  size_t group = 0, sequence = 0, activations = 0, recompute = 6;

  void Fit(const TrainSetup& setup);
};
// Stage, shard groups, what a GPU has of a sequence, homes of states, parameters and activations,
// recompute. REQUIRES: `widths` fit every setup.
void AddChoiceColumns(ReportColumns& columns, const ChoiceWidths& widths);
// The cells of these columns; none is wider than its column.
std::vector<std::string> ChoiceCells(const TrainSetup& setup, const ChoiceWidths& widths);

// Below a table that a narrow page has cut columns of: which (what LeaveOut returned), and that
// `elsewhere` ("a wider terminal and ⟦format⟧ json") has them. "" if none was cut.
std::string LeftOutText(const std::string& left_out, const char* elsewhere, size_t columns);

}  // namespace zeroplan
