// How this process was called.
#pragma once

#include <string>
#include <vector>

namespace zeroplan {

// This process's own arguments, the program's name first. Empty where /proc does not tell them.
std::vector<std::string> OwnArguments();

}  // namespace zeroplan
