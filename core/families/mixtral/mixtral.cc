#include "core/families/mixtral/mixtral.h"

#include "core/families/llama/llama.h"

namespace zeroplan {
namespace {

// Defaults as in transformers' MixtralConfig.
constexpr MixtureKind kExperts = {.experts = 8,
                                  .experts_per_token = 2,
                                  .normalized = true,
                                  .mixtral_names = true,
                                  .shape_width = 3.5};
constexpr LlamaKind kKind = {.name = "mixtral",
                             .architecture = "MixtralForCausalLM",
                             .ffn = 14336,
                             .vocab = 32000,
                             .positions = 131072,
                             .kv_heads = 8,
                             .sliding_window = -1,
                             .eps = 1e-5,
                             .shape_vocab = 32000,
                             .shape_theta = 1'000'000,
                             .shape_eps = 1e-5f,
                             .theta = 1'000'000,
                             .mixture = &kExperts};

const std::vector<ModelPreset>& Presets() {
  constexpr const char* kSource =
      "Jiang et al. 2024, arXiv 2401.04088; config.json on Hugging Face";
  constexpr MixtureSize k8x7b = {.name = "mixtral-8x7b",
                                 .layers = 32,
                                 .hidden = 4096,
                                 .heads = 32,
                                 .kv_heads = 8,
                                 .head_size = 128,
                                 .ffn = 14336,
                                 .experts = 8,
                                 .experts_per_token = 2,
                                 .vocab = 32000,
                                 .positions = 32768,
                                 .theta = 1e6f,
                                 .eps = 1e-5f,
                                 .aux_loss = 0.02f,
                                 .normalized = true};
  constexpr MixtureSize k8x22b = {.name = "mixtral-8x22b",
                                  .layers = 56,
                                  .hidden = 6144,
                                  .heads = 48,
                                  .kv_heads = 8,
                                  .head_size = 128,
                                  .ffn = 16384,
                                  .experts = 8,
                                  .experts_per_token = 2,
                                  .vocab = 32000,
                                  .positions = 65536,
                                  .theta = 1e6f,
                                  .eps = 1e-5f,
                                  .aux_loss = 0.001f,
                                  .normalized = true};
  // Another tokenizer.
  MixtureSize instruct = k8x22b;
  instruct.name = "mixtral-8x22b-instruct";
  instruct.vocab = 32768;
  static const std::vector<ModelPreset> presets = {
      MixturePreset(Mixtral(), kKind, k8x7b, kSource,
                    {{"mistralai/Mixtral-8x7B-v0.1"}, {"mistralai/Mixtral-8x7B-Instruct-v0.1"}}),
      MixturePreset(Mixtral(), kKind, k8x22b, kSource, {{"mistralai/Mixtral-8x22B-v0.1"}}),
      MixturePreset(Mixtral(), kKind, instruct, kSource,
                    {{"mistralai/Mixtral-8x22B-Instruct-v0.1"}}),
  };
  return presets;
}

}  // namespace

const ModelFamily& Mixtral() {
  static const std::unique_ptr<const ModelFamily> family = MakeLlamaFamily(kKind, Presets);
  return *family;
}

}  // namespace zeroplan
