// Version of this build. A plan remembers the version that made it, since another one may lower the
// same choice to another program. A test holds it to CMake's project version.
#pragma once

#include <string_view>

namespace zeroplan {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace zeroplan
