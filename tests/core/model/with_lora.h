// A model with adapters.
#pragma once

#include <string>

#include "core/model/model_spec.h"

namespace zeroplan::testing {

inline ModelSpec WithLora(ModelSpec model, const std::string& targets, int64_t rank = 3) {
  model.lora_rank = rank;
  model.lora_alpha = 2 * static_cast<float>(rank);
  model.lora_targets = targets;
  return model;
}

}  // namespace zeroplan::testing
