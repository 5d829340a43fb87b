// The JSON files of hwprofiles/ as they were when CMake configured the build.
#pragma once

#include <span>
#include <string_view>

namespace zeroplan {

struct EmbeddedFile {
  std::string_view folder;  // "profiles", "gpus", "networks", ...
  std::string_view name;    // file name without .json
  std::string_view json;
};

// The files by folder, then name. Defined in a source that CMake writes (see embed.cmake).
std::span<const EmbeddedFile> EmbeddedFiles();

}  // namespace zeroplan
