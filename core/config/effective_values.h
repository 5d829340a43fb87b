// The effective value of each key of a config, and its origin.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_source.h"
#include "core/settings/zero_config.h"

namespace zeroplan {

struct EffectiveValue {
  std::string key;    // "zero_optimization.stage"
  std::string value;  // "2"; "auto" where zeroplan chooses once it knows the model
  // "line 3" of the config; "auto"; "default"; or "derived" from other keys or the command line.
  std::string origin;
};

// The values of the settings that have an effect in `setup`, which was read from the config `root`.
std::vector<EffectiveValue> EffectiveValues(const TrainSetup& setup, const JsonNode& root);

}  // namespace zeroplan
