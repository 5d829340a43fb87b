// Version of this build. A plan records the version that made it, because another one may lower the
// same choice to another program. A test checks that it equals CMake's project version.
#pragma once

#include <string_view>

namespace zeroplan {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace zeroplan
