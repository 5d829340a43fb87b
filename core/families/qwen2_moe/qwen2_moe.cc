#include "core/families/qwen2_moe/qwen2_moe.h"

#include "core/families/llama/llama.h"

namespace zeroplan {
namespace {

// Defaults as in transformers' Qwen2MoeConfig.
constexpr MixtureKind kExperts = {.experts = 60,
                                  .experts_per_token = 4,
                                  .expert_ffn = 1408,
                                  .shared_ffn = 5632,
                                  .dense_layers = true,
                                  .shape_width = 0.6875};
constexpr LlamaKind kKind = {.name = "qwen2_moe",
                             .architecture = "Qwen2MoeForCausalLM",
                             .layers = 24,
                             .hidden = 2048,
                             .heads = 16,
                             .ffn = 5632,
                             .vocab = 151936,
                             .positions = 32768,
                             .kv_heads = 16,
                             .sliding_window = 4096,
                             .window_switch = true,
                             .qkv_bias = true,
                             .shape_vocab = 151936,
                             .shape_theta = 1'000'000,
                             .shape_eps = 1e-6f,
                             .mixture = &kExperts};

const std::vector<ModelPreset>& Presets() {
  constexpr MixtureSize k2_7b = {.name = "qwen1.5-moe-a2.7b",
                                 .layers = 24,
                                 .hidden = 2048,
                                 .heads = 16,
                                 .kv_heads = 16,
                                 .head_size = 128,
                                 .ffn = 5632,
                                 .expert_ffn = 1408,
                                 .shared_ffn = 5632,
                                 .experts = 60,
                                 .experts_per_token = 4,
                                 .vocab = 151936,
                                 .positions = 8192,
                                 .theta = 1e6f,
                                 .eps = 1e-6f,
                                 .aux_loss = 0.001f};
  constexpr MixtureSize k57b = {.name = "qwen2-57b-a14b",
                                .layers = 28,
                                .hidden = 3584,
                                .heads = 28,
                                .kv_heads = 4,
                                .head_size = 128,
                                .ffn = 18944,
                                .expert_ffn = 2560,
                                .shared_ffn = 20480,
                                .experts = 64,
                                .experts_per_token = 8,
                                .vocab = 151936,
                                .positions = 131072,
                                .theta = 1e6f,
                                .eps = 1e-6f,
                                .aux_loss = 0.001f};
  static const std::vector<ModelPreset> presets = {
      MixturePreset(Qwen2Moe(), kKind, k2_7b, "config.json on Hugging Face",
                    {{"Qwen/Qwen1.5-MoE-A2.7B"}, {"Qwen/Qwen1.5-MoE-A2.7B-Chat"}}),
      MixturePreset(Qwen2Moe(), kKind, k57b,
                    "Yang et al. 2024, arXiv 2407.10671; config.json on Hugging Face",
                    {{"Qwen/Qwen2-57B-A14B"}, {"Qwen/Qwen2-57B-A14B-Instruct", 32768}}),
  };
  return presets;
}

}  // namespace

const ModelFamily& Qwen2Moe() {
  static const std::unique_ptr<const ModelFamily> family = MakeLlamaFamily(kKind, Presets);
  return *family;
}

}  // namespace zeroplan
