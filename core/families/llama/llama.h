// Llama and the families that use its layer: mistral, qwen2, qwen3. Rotary positions, RMS norms
// before attention and MLP, grouped-query attention, an MLP with SwiGLU. Families differ in fields
// of ModelSpec (biases, norms of query and key heads, an untied head), so they share one parameter
// table and one graph; each has its own config.json and published shapes. Sources of the
// architecture: Touvron et al. 2023 (Llama), Grattafiori et al. 2024 (Llama 3), Jiang et al. 2023
// (Mistral), Yang et al. 2024 and 2025 (Qwen2, Qwen3); names as in Hugging Face's LlamaForCausalLM
// and its kin.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/model/model_family.h"

namespace zeroplan {

const ModelFamily& Llama();
const ModelFamily& Mistral();
const ModelFamily& Qwen2();
const ModelFamily& Qwen3();

// ---- parts shared by the families ----

// The defaults of a family's config.json, and the keys that it supports.
struct LlamaKind {
  const char* name;          // model_type
  const char* architecture;  // "LlamaForCausalLM"
  // Defaults of transformers' configuration class.
  int64_t layers = 32, hidden = 4096, heads = 32;
  int64_t ffn, vocab, positions;
  int64_t kv_heads;        // 0: as many as heads
  int64_t head_size;       // 0: hidden over heads
  int64_t sliding_window;  // 0: none
  double eps = 1e-6;
  // Keys that only some families have: switches of biases, and use_sliding_window, without which
  // sliding_window has no effect.
  bool attention_bias, mlp_bias, window_switch;
  // Fixed properties without a key.
  bool qkv_bias, qk_norm;
  // Values for shapes between the published ones.
  int64_t tied_below;  // least hidden with an untied head
  int64_t shape_vocab;
  float shape_theta, shape_eps;
};

std::string_view LlamaConfigKey(std::string_view field);
ModelSpec ReadLlamaConfig(const LlamaKind& kind, JsonSection* config,
                          std::vector<std::string>* notes);
std::string WriteLlamaConfig(const LlamaKind& kind, const ModelSpec& spec);

// Reads the rotary positions of a config.json of either style: rope_theta and rope_scaling
// (transformers 4), or rope_parameters (5). REQUIRES: spec->positions is read.
void ReadRope(JsonSection* config, ModelSpec* spec);

const std::vector<ModelPreset>& LlamaPresets();
const std::vector<ModelPreset>& MistralPresets();
const std::vector<ModelPreset>& Qwen2Presets();
const std::vector<ModelPreset>& Qwen3Presets();
// A model with the proportions of the family's published models of about that width.
ModelSpec LlamaShape(const LlamaKind& kind, const ModelFamily& family, int64_t layers,
                     int64_t hidden, int64_t positions, bool byte_level);

}  // namespace zeroplan
