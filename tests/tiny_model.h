// The model of tests that need one of their own size: a GPT-2 small enough to lower, walk and train
// in no time. A test names the dimensions that it is about.
#pragma once

#include <string>

#include "core/families/gpt2/gpt2.h"
#include "core/model/model_spec.h"

namespace zeroplan::testing {

struct TinyShape {
  std::string name = "tiny";
  int64_t layers = 3, hidden = 20, heads = 2, ffn = 52, vocab = 37, padded_vocab = 40,
          positions = 8;
};

inline ModelSpec TinyModel(const TinyShape& shape = {}) {
  ModelSpec spec;
  spec.name = shape.name;
  spec.family = &Gpt2();
  spec.layers = shape.layers;
  spec.hidden = shape.hidden;
  spec.heads = shape.heads;
  spec.ffn = shape.ffn;
  spec.vocab = shape.vocab;
  spec.padded_vocab = shape.padded_vocab;
  spec.positions = shape.positions;
  return spec;
}
inline ModelSpec TinyModel(int64_t layers) { return TinyModel({.layers = layers}); }

}  // namespace zeroplan::testing
