// An Estimate as a table for people, as JSON ("zeroplan.estimate/1") and as CSV.
#pragma once

#include <string>
#include <vector>

#include "core/base/terminal.h"
#include "planner/estimate/estimate.h"
#include "planner/report/report_text.h"

namespace zeroplan {

struct TableStyle {
  size_t columns = kPlainColumns;
  bool colour = false;
  std::string first;  // a line above the table
  // Defaults that zeroplan assumed: "--micro-batch 1". Printed below the table.
  std::vector<std::string> assumed;
  // Other lines below the table.
  std::vector<std::string> notes;
};

// A table of at most style.columns columns. A single choice also has its peaks by phase.
std::string ReportTable(const Estimate& estimate, const TableStyle& style);
// The answer on one screen: a row for each choice, those that fit first and of these the ones
// without offload, at most kEstimateRows; choices with files on a disk only if `disks`. Prints
// neither style.assumed nor style.notes.
inline constexpr size_t kEstimateRows = 8;
std::string EstimateScreen(const Estimate& estimate, const TableStyle& style, bool disks,
                           const ScreenNotes& notes);
// Keys and order are a contract (docs/metrics.md). Unknown values are null.
std::string ReportJson(const Estimate& estimate);
// One header line, then one line for each choice. Columns are the JSON's keys joined by '.';
// unknown values are empty.
std::string ReportCsv(const Estimate& estimate);

}  // namespace zeroplan
