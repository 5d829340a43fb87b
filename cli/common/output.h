// Where results go.
#pragma once

#include <string>
#include <string_view>

namespace zeroplan {

// To `file`, or to stdout if it is empty. Throws Error(kRuntime) if not all of it could be written.
void WriteOutput(const std::string& file, std::string_view text);

// True if stdout is a terminal that shows colours and NO_COLOR (no-color.org) is not set.
bool StdoutTakesColour();

}  // namespace zeroplan
