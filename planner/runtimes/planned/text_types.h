// The language models that are planned, by the model_type of their config.json.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace zeroplan {

// Types whose layers have parts that no other type has.
enum class Special : uint8_t {
  kNone,
  kGptOss,     // biases everywhere, a sink for each head
  kGlm,        // the first layers have an MLP in place of experts
  kQwenMixed,  // most layers have attention of a linear kind, with a recurrent state
};

// A language model's code, and its config's defaults.
struct TextType {
  std::string_view type;
  int64_t layers, hidden, heads, kv_heads, head_size, ffn, vocab, positions;
  bool tied = false, gemma = false, qk_norm = false, qkv_bias = false, one_products = false;
  // Sliding windows: of `period` layers in a row all but the last have one.
  int64_t window = 0, period = 0;
  double score_cap = 0, logit_cap = 0;
  // Experts, and a layer's tensors of them ("block_sparse_moe.").
  int64_t experts = 0, experts_per_token = 0, expert_ffn = 0, shared_ffn = 0;
  const char* expert_prefix = "mlp.";
  Special special = Special::kNone;
  // Norms of queries and keys over all heads; a token's shares of experts are as the router gives
  // them.
  bool olmoe = false;
};

std::span<const TextType> TextTypes();
// Null: no such type. "qwen3_5_text", the language model of a config that has another part too, is
// "qwen3_5".
const TextType* TextTypeNamed(std::string_view type);

}  // namespace zeroplan
