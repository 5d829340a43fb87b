// Cells of the estimate table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/estimate.h"

namespace zeroplan {

inline constexpr size_t kReportColumns = 100;

// The unit that all byte columns of a table share, so that a column reads as one scale.
struct ByteUnit {
  const char* name;
  double bytes;
};
ByteUnit CommonUnit(const Estimate& estimate);

// At most 5 characters, three significant digits: "12.3", "0.41", "1034", "18.0M"; "-" for zero.
std::string ByteCell(uint64_t bytes, const ByteUnit& unit);

// `text` broken at spaces into lines of at most kReportColumns, all but the first indented;
// spaces it starts with stay.
std::string Wrap(const std::string& text, size_t indent);

}  // namespace zeroplan
