// What one rank measured of attention, as text for another rank.
#pragma once

#include <string>
#include <vector>

#include "executor/measure/measurement.h"

namespace zeroplan {

// The rows of `found`, or why its attention failed.
std::string AttentionText(const MachineMeasurement& found);

// The rows again, to the bit. Throws Error(kRuntime) with the reason if there is one, and if `text`
// is nothing that AttentionText returns.
std::vector<AttentionRate> AttentionOfText(const std::string& text);

}  // namespace zeroplan
