// The first columns of every table with a choice in each row, and the line below a table that was
// cut.
#pragma once

#include <string>
#include <vector>

#include "core/config/zero_config.h"
#include "planner/report/report_columns.h"

namespace zeroplan {

// Characters that the shard groups of `setup` want; 0 without any.
int GroupWidth(const TrainSetup& setup);
// Stage, shard groups unless their width is 0, homes of states and parameters, recompute.
// REQUIRES: group_width >= GroupWidth of every setup.
void AddChoiceColumns(ReportColumns& columns, int group_width);
// The cells of these columns, with `groups` those of groups too; none is wider than its column.
std::vector<std::string> ChoiceCells(const TrainSetup& setup, bool groups);

// Below a table that a narrow page has cut columns of: which (what LeaveOut returned), and that
// `--format FORMAT` has them. "" if none was cut.
std::string LeftOutText(const std::string& left_out, const char* format, size_t columns);

}  // namespace zeroplan
