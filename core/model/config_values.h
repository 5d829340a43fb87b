// What readers and writers of a Hugging Face config.json share.
#pragma once

#include <fmt/format.h>

#include <string>

#include "core/base/json_section.h"

namespace zeroplan {

// A switch that a family's model has in one position only: the other is an error.
inline void RequireSwitch(JsonSection* config, const char* key, bool supported) {
  if (config->Bool(key).value_or(supported) != supported) {
    config->Fail(key, "{} is not supported; use {}", !supported, supported);
  }
}

// The shortest decimal form of a float (1e-05, not 9.999999747378752e-06), which reads back as the
// same float.
inline double Decimal(float value) { return std::stod(fmt::format("{}", value)); }

}  // namespace zeroplan
