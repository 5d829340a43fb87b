// Mixtures of experts that are small enough to train in no time.
#pragma once

#include "core/model/model_family.h"
#include "core/model/model_spec.h"

namespace zeroplan::testing {

// Five experts, of which a token takes two; with what the family has of its own. Without auxiliary
// losses.
inline ModelSpec TinyMixture(const ModelFamily& family) {
  ModelSpec spec;
  spec.name = "tiny";
  spec.family = &family;
  spec.layers = 2;
  spec.hidden = 24;
  spec.heads = 6;
  spec.kv_heads = 2;
  spec.ffn = 20;
  spec.experts = 5;
  spec.experts_per_token = 2;
  spec.vocab = 37;
  spec.padded_vocab = 40;
  spec.positions = 16;
  spec.init_std = 0.05f;
  spec.tied_head = false;
  const std::string_view name = family.name();
  spec.qkv_bias = name == "qwen2_moe";
  spec.qk_norm = name == "qwen3_moe" || name == "olmoe";
  spec.qk_norm_whole = name == "olmoe";
  spec.normalized_gates = name == "mixtral" || name == "qwen3_moe";
  if (name == "qwen3_moe" || name == "qwen2_moe") {
    spec.ffn = 40;
    spec.expert_ffn = 20;
  }
  if (name == "qwen2_moe") spec.shared_ffn = 28;
  return spec;
}

}  // namespace zeroplan::testing
