#include "core/families/olmoe/olmoe.h"

#include "core/families/llama/llama.h"

namespace zeroplan {
namespace {

// Defaults as in transformers' OlmoeConfig.
constexpr MixtureKind kExperts = {
    .experts = 64, .experts_per_token = 8, .aux_loss = 0.01, .shape_width = 0.5};
constexpr LlamaKind kKind = {.name = "olmoe",
                             .architecture = "OlmoeForCausalLM",
                             .layers = 16,
                             .hidden = 2048,
                             .heads = 16,
                             .ffn = 2048,
                             .vocab = 50304,
                             .positions = 4096,
                             .eps = 1e-5,
                             .attention_bias = true,
                             .qk_norm = true,
                             .shape_vocab = 50304,
                             .shape_theta = 10000,
                             .shape_eps = 1e-5f,
                             .qk_norm_whole = true,
                             .mixture = &kExperts};

const std::vector<ModelPreset>& Presets() {
  constexpr MixtureSize k7b = {.name = "olmoe-1b-7b",
                               .layers = 16,
                               .hidden = 2048,
                               .heads = 16,
                               .kv_heads = 16,
                               .head_size = 128,
                               .ffn = 1024,
                               .experts = 64,
                               .experts_per_token = 8,
                               .vocab = 50304,
                               .positions = 4096,
                               .theta = 1e4f,
                               .eps = 1e-5f,
                               .aux_loss = 0.01f};
  static const std::vector<ModelPreset> presets = {MixturePreset(
      Olmoe(), kKind, k7b, "Muennighoff et al. 2024, arXiv 2409.02060; config.json on Hugging Face",
      {{"allenai/OLMoE-1B-7B-0924"},
       {"allenai/OLMoE-1B-7B-0924-Instruct"},
       {"allenai/OLMoE-1B-7B-0125"}})};
  return presets;
}

}  // namespace

const ModelFamily& Olmoe() {
  static const std::unique_ptr<const ModelFamily> family = MakeLlamaFamily(kKind, Presets);
  return *family;
}

}  // namespace zeroplan
