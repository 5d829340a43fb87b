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
  // What nobody asked for but zeroplan took: "--micro-batch 1". Printed below the table.
  std::vector<std::string> assumed;
  // Other lines below the table.
  std::vector<std::string> notes;
};

// A table of at most that many columns. One choice alone also gets its peaks by phase.
std::string ReportTable(const Estimate& estimate, const TableStyle& style);
// Keys and order are a contract (docs/metrics.md). What is not known is null.
std::string ReportJson(const Estimate& estimate);
// One header line, then one line a choice; the JSON's keys joined by '.', unknown fields empty.
std::string ReportCsv(const Estimate& estimate);

}  // namespace zeroplan
