// Small models whose linears all fit products of eight bits, and setups that take them.
#pragma once

#include <string>

#include "core/settings/setup_facts.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/tiny_model.h"

namespace zeroplan::testing {

inline ModelSpec Fp8Gpt2(Fp8Recipe recipe, int64_t layers = 2) {
  const int64_t side = Fp8Multiple(recipe);
  ModelSpec model = TinyModel({.layers = layers, .positions = 16});
  model.hidden = recipe == Fp8Recipe::kBlocks ? side : 2 * side;
  model.ffn = model.hidden + side;
  return model;
}

// Two query heads share one of keys and values.
inline ModelSpec Fp8Llama(Fp8Recipe recipe, int64_t layers = 2) {
  const int64_t side = Fp8Multiple(recipe);
  ModelSpec model = TinyLlama(Llama());
  model.layers = layers;
  model.heads = 4;
  model.kv_heads = 2;
  model.hidden = recipe == Fp8Recipe::kBlocks ? side : 2 * side;
  model.ffn = model.hidden + side;
  return model;
}

// `setup` with products of eight bits, in micro-batches that fit them.
inline TrainSetup WithFp8(TrainSetup setup, Fp8Recipe recipe, Dtype gradients = Dtype::kE4M3) {
  setup.precision.fp8 = {.enabled = true, .recipe = recipe, .gradients = gradients};
  setup.batch.micro_batch = Fp8Multiple(recipe) / setup.batch.seq_len;
  return setup;
}

}  // namespace zeroplan::testing
