// A section's streams drawn as text, one row a stream.
#pragma once

#include <string>
#include <string_view>

#include "core/program/program.h"
#include "planner/explain/explain.h"

namespace zeroplan {

// Characters of a row: 80, or fewer where the page (core/base/terminal.h) is narrower than 100.
int LaneColumns();

// Rows of LaneColumns() characters, each column an equal share of the section's time; streams that
// are never busy are left out. A column shows the letter of what its stream does for most of it:
//   F forward, B backward (recompute too), U update: kernels on the compute stream;
//   g gather, r reduce, h to the device, d from the device, c host kernels, s disk;
//   - busy for less than half of the column; . idle.
// Below the rows an axis in milliseconds. Empty if nothing takes time.
std::string DrawLanes(const Program& program, const PlayedPart& played);

// What the letters in `drawn` stand for, in one line: "F forward, g gather, . idle".
std::string LaneLegend(std::string_view drawn);

}  // namespace zeroplan
