// Llama and the families that use its layer: mistral, qwen2, qwen3. Rotary positions, RMS norms
// before attention and MLP, grouped-query attention, an MLP with SwiGLU. Families differ in fields
// of ModelSpec (biases, norms of query and key heads, an untied head), so they share one parameter
// table and one graph; each has its own config.json and published shapes. Sources of the
// architecture: Touvron et al. 2023 (Llama), Grattafiori et al. 2024 (Llama 3), Jiang et al. 2023
// (Mistral), Yang et al. 2024 and 2025 (Qwen2, Qwen3); names as in Hugging Face's LlamaForCausalLM
// and its kin.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/lowering/graph_builder.h"
#include "core/model/model_family.h"

namespace zeroplan {

const ModelFamily& Llama();
const ModelFamily& Mistral();
const ModelFamily& Qwen2();
const ModelFamily& Qwen3();

// ---- parts shared by the families, those of mixtures of experts among them ----

// The experts of a family: the defaults of its config.json, and the keys that it supports.
struct MixtureKind {
  int64_t experts, experts_per_token;
  int64_t expert_ffn = 0;  // default of moe_intermediate_size; 0: experts have intermediate_size
  int64_t shared_ffn = 0;  // default of shared_expert_intermediate_size; 0: no shared expert
  double aux_loss = 0.001;
  // The weights of a token's experts add up to 1; else norm_topk_prob decides.
  bool normalized = false;
  // The keys decoder_sparse_step and mlp_only_layers.
  bool dense_layers = false;
  // Mixtral's names: block_sparse_moe, w1, w3 and w2, num_local_experts.
  bool mixtral_names = false;
  // Width of an expert over the hidden width, for shapes between the published ones.
  double shape_width;
};

// The defaults of a family's config.json, and the keys that it supports.
struct LlamaKind {
  const char* name;          // model_type
  const char* architecture;  // "LlamaForCausalLM"
  // Defaults of transformers' configuration class.
  int64_t layers = 32, hidden = 4096, heads = 32;
  int64_t ffn, vocab, positions;
  int64_t kv_heads;        // 0: as many as heads
  int64_t head_size;       // 0: hidden over heads
  int64_t sliding_window;  // 0: no such key; -1: the key's default is none
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
  // Norms of all query heads together, and of all key heads.
  bool qk_norm_whole = false;
  double theta = 10000;  // default of rope_theta
  const MixtureKind* mixture = nullptr;
};

std::string_view LlamaConfigKey(std::string_view field);
ModelSpec ReadLlamaConfig(const LlamaKind& kind, JsonSection* config,
                          std::vector<std::string>* notes);
std::string WriteLlamaConfig(const LlamaKind& kind, const ModelSpec& spec);

// The experts' keys. Reading sets the fields of a model whose others are read.
void ReadMixture(const LlamaKind& kind, JsonSection* config, ModelSpec* spec,
                 std::vector<std::string>* notes);
void WriteMixture(const MixtureKind& kind, const ModelSpec& spec, nlohmann::ordered_json* out);

// Rows of a layer's experts with their router, by the ids of `ids`.
std::vector<ParamRow> ExpertRows(const MixtureKind& kind, const ModelSpec& spec,
                                 const ExpertParams& ids);

// Reads the rotary positions of a config.json of either style: rope_theta and rope_scaling
// (transformers 4), or rope_parameters (5); `theta` is the base without a key. REQUIRES:
// spec->positions is read.
void ReadRope(JsonSection* config, ModelSpec* spec, double theta = 10000);

const std::vector<ModelPreset>& LlamaPresets();
const std::vector<ModelPreset>& MistralPresets();
const std::vector<ModelPreset>& Qwen2Presets();
const std::vector<ModelPreset>& Qwen3Presets();

// A published shape of a mixture. Fields that are 0 or false are as in ModelSpec.
struct MixtureSize {
  const char* name;
  int64_t layers, hidden, heads, kv_heads, head_size, ffn, expert_ffn, shared_ffn;
  int64_t experts, experts_per_token, vocab, positions;
  float theta, eps, aux_loss;
  bool normalized;
};
ModelPreset MixturePreset(const ModelFamily& family, const LlamaKind& kind, const MixtureSize& size,
                          const char* source, std::vector<PublishedName> published);

// The family of a kind. `presets` is called at the first use of its list.
std::unique_ptr<const ModelFamily> MakeLlamaFamily(const LlamaKind& kind,
                                                   const std::vector<ModelPreset>& (*presets)());
// A model with the proportions of the family's published models of about that width.
ModelSpec LlamaShape(const LlamaKind& kind, const ModelFamily& family, int64_t layers,
                     int64_t hidden, int64_t positions, bool byte_level);

}  // namespace zeroplan
