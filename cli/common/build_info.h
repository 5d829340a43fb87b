// The text of --version.
#pragma once

#include <string>

namespace zeroplan {

// Several lines; the first is "zeroplan 0.1.0".
std::string VersionText();

}  // namespace zeroplan
