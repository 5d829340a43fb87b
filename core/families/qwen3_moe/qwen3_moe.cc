#include "core/families/qwen3_moe/qwen3_moe.h"

#include "core/families/llama/llama.h"

namespace zeroplan {
namespace {

// Defaults as in transformers' Qwen3MoeConfig.
constexpr MixtureKind kExperts = {.experts = 128,
                                  .experts_per_token = 8,
                                  .expert_ffn = 768,
                                  .dense_layers = true,
                                  .shape_width = 0.375};
constexpr LlamaKind kKind = {.name = "qwen3_moe",
                             .architecture = "Qwen3MoeForCausalLM",
                             .layers = 24,
                             .hidden = 2048,
                             .ffn = 6144,
                             .vocab = 151936,
                             .positions = 32768,
                             .kv_heads = 4,
                             .sliding_window = 4096,
                             .attention_bias = true,
                             .window_switch = true,
                             .qk_norm = true,
                             .shape_vocab = 151936,
                             .shape_theta = 1'000'000,
                             .shape_eps = 1e-6f,
                             .mixture = &kExperts};

const std::vector<ModelPreset>& Presets() {
  constexpr const char* kSource = "Yang et al. 2025, arXiv 2505.09388; config.json on Hugging Face";
  constexpr MixtureSize k30b = {.name = "qwen3-30b-a3b",
                                .layers = 48,
                                .hidden = 2048,
                                .heads = 32,
                                .kv_heads = 4,
                                .head_size = 128,
                                .ffn = 6144,
                                .expert_ffn = 768,
                                .experts = 128,
                                .experts_per_token = 8,
                                .vocab = 151936,
                                .positions = 40960,
                                .theta = 1e6f,
                                .eps = 1e-6f,
                                .aux_loss = 0.001f,
                                .normalized = true};
  constexpr MixtureSize k235b = {.name = "qwen3-235b-a22b",
                                 .layers = 94,
                                 .hidden = 4096,
                                 .heads = 64,
                                 .kv_heads = 4,
                                 .head_size = 128,
                                 .ffn = 12288,
                                 .expert_ffn = 1536,
                                 .experts = 128,
                                 .experts_per_token = 8,
                                 .vocab = 151936,
                                 .positions = 40960,
                                 .theta = 1e6f,
                                 .eps = 1e-6f,
                                 .aux_loss = 0.001f,
                                 .normalized = true};
  static const std::vector<ModelPreset> presets = {
      MixturePreset(Qwen3Moe(), kKind, k30b, kSource,
                    {{"Qwen/Qwen3-30B-A3B"},
                     {"Qwen/Qwen3-30B-A3B-Base", 32768},
                     {"Qwen/Qwen3-30B-A3B-Instruct-2507", 262144, 1e7f},
                     {"Qwen/Qwen3-30B-A3B-Thinking-2507", 262144, 1e7f},
                     {"Qwen/Qwen3-Coder-30B-A3B-Instruct", 262144, 1e7f}}),
      MixturePreset(Qwen3Moe(), kKind, k235b, kSource, {{"Qwen/Qwen3-235B-A22B"}}),
  };
  return presets;
}

}  // namespace

const ModelFamily& Qwen3Moe() {
  static const std::unique_ptr<const ModelFamily> family = MakeLlamaFamily(kKind, Presets);
  return *family;
}

}  // namespace zeroplan
