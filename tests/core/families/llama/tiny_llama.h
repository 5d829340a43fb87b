// Models of llama's kind that are small enough to train in no time.
#pragma once

#include "core/families/llama/llama.h"
#include "core/model/model_spec.h"

namespace zeroplan::testing {

// Six query heads share two of keys and values. With what the family has of its own: biases of
// Qwen2, norms of Qwen3's heads.
inline ModelSpec TinyLlama(const ModelFamily& family) {
  ModelSpec spec;
  spec.name = "tiny";
  spec.family = &family;
  spec.layers = 2;
  spec.hidden = 24;
  spec.heads = 6;
  spec.kv_heads = 2;
  spec.ffn = 40;
  spec.vocab = 37;
  spec.padded_vocab = 40;
  spec.positions = 16;
  spec.init_std = 0.05f;
  spec.tied_head = false;
  spec.qkv_bias = &family == &Qwen2();
  spec.qk_norm = &family == &Qwen3();
  return spec;
}

}  // namespace zeroplan::testing
