// A process's place from made-up variables of its environment.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "executor/process/launch_environment.h"

namespace zeroplan {

using Variables = std::map<std::string, std::string>;

inline std::optional<ProcessPlace> PlaceOf(const Variables& variables) {
  return PlaceFromEnvironment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace zeroplan
