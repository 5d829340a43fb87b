// The first columns of every table with a choice in each row, and the line below a table that was
// cut.
#pragma once

#include <string>
#include <vector>

#include "core/config/zero_config.h"
#include "planner/report/report_columns.h"

namespace zeroplan {

// Stage, with `groups` the shard groups, homes of states and parameters, recompute.
void AddChoiceColumns(ReportColumns& columns, bool groups);
// The cells of these columns, none wider than its column but for groups of 100 GPUs and more.
std::vector<std::string> ChoiceCells(const TrainSetup& setup, bool groups);

// Below a table that a narrow page has cut columns of: which (what LeaveOut returned), and that
// `--format FORMAT` has them. "" if none was cut.
std::string LeftOutText(const std::string& left_out, const char* format, size_t columns);

}  // namespace zeroplan
