// An Estimate as a table for people, as JSON ("zeroplan.estimate/1") and as CSV.
#pragma once

#include <string>
#include <vector>

#include "core/base/terminal.h"
#include "planner/estimate/estimate.h"

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
// Keys and order are a contract (docs/metrics.md). Unknown values are null.
std::string ReportJson(const Estimate& estimate);
// One header line, then one line for each choice. Columns are the JSON's keys joined by '.';
// unknown values are empty.
std::string ReportCsv(const Estimate& estimate);

}  // namespace zeroplan
