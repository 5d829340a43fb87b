// A model with adapters.
#pragma once

#include <string>
#include <utility>

#include "core/model/model_spec.h"

namespace zeroplan::testing {

inline ModelSpec WithLora(ModelSpec model, const std::string& targets, int64_t rank = 3) {
  model.lora_rank = rank;
  model.lora_alpha = 2 * static_cast<float>(rank);
  model.lora_targets = targets;
  return model;
}

// The same over a base in NF4.
inline ModelSpec WithQlora(ModelSpec model, const std::string& targets, int64_t rank = 3) {
  model = WithLora(std::move(model), targets, rank);
  model.lora_quantized = true;
  return model;
}

inline ModelSpec WithDropout(ModelSpec adapted, float share = 0.25f) {
  adapted.lora_dropout = share;
  return adapted;
}

}  // namespace zeroplan::testing
