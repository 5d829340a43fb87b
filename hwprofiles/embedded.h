// The profiles of hwprofiles/profiles/*.json as they were when CMake configured the build.
#pragma once

#include <span>
#include <string_view>

namespace zeroplan {

struct EmbeddedProfile {
  std::string_view name;  // file name without .json
  std::string_view json;
};

// By name. Defined in a source that CMake writes (see embed.cmake).
std::span<const EmbeddedProfile> EmbeddedProfiles();

}  // namespace zeroplan
