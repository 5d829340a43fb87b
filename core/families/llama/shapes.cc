// Published shapes of llama's kind, and what shapes between them look like.
#include <algorithm>

#include "core/families/llama/llama.h"

namespace zeroplan {
namespace {

struct Heads {
  int64_t queries, keys, size;
};

struct Size {
  const char* name;
  int64_t layers, hidden;
  Heads heads;
  int64_t ffn;
  bool tied = false;
};

// What the models of one release share.
struct Release {
  const ModelFamily& (*family)();
  int64_t vocab, positions;
  float theta, eps;
  const char* source;
  float llama3_factor = 0;  // 0: no scaling of the positions
  float init_std = 0.02f;
  int64_t window = 0;  // tokens that attention sees; 0: all
};

// Fields are left at 0 where they are what follows from the others.
void SetHeads(const Heads& heads, ModelSpec& spec) {
  spec.heads = heads.queries;
  spec.kv_heads = heads.keys == heads.queries ? 0 : heads.keys;
  spec.head_size = heads.size * heads.queries == spec.hidden ? 0 : heads.size;
}

// What a family's models have without a key of their config.
void SetKind(const ModelFamily& family, ModelSpec& spec) {
  spec.family = &family;
  spec.qkv_bias = &family == &Qwen2();
  spec.qk_norm = &family == &Qwen3();
}

ModelPreset Preset(const Release& release, const Size& size, std::vector<PublishedName> published) {
  ModelSpec spec;
  spec.name = size.name;
  SetKind(release.family(), spec);
  spec.layers = size.layers;
  spec.hidden = size.hidden;
  SetHeads(size.heads, spec);
  spec.ffn = size.ffn;
  spec.vocab = release.vocab;
  spec.padded_vocab = PadVocab(spec.vocab);
  spec.positions = release.positions;
  spec.layer_norm_eps = release.eps;
  spec.init_std = release.init_std;
  spec.tied_head = size.tied;
  spec.rope_theta = release.theta;
  spec.window = release.window;
  if (release.llama3_factor > 0) {
    spec.rope_scaling = RotaryScaling::kLlama3;
    spec.rope_positions = 8192;
    spec.rope_factor = release.llama3_factor;
    spec.rope_low = 1;
    spec.rope_high = 4;
  }
  return {std::move(spec), release.source, std::move(published)};
}

// By family: vocabulary, positions, theta, epsilon.
constexpr Release kLlama2 = {
    Llama, 32000, 4096, 10000, 1e-5f, "Touvron et al. 2023 (Llama 2), meta-llama/Llama-2-*-hf"};
constexpr Release kLlama3 = {Llama,  128256, 8192,
                             500000, 1e-5f,  "Grattafiori et al. 2024, meta-llama/Meta-Llama-3-*"};
constexpr Release kLlama31 = {
    Llama, 128256, 131072, 500000, 1e-5f, "Grattafiori et al. 2024, meta-llama/Llama-3.1-*", 8};
constexpr Release kLlama32 = {Llama, 128256, 131072, 500000, 1e-5f, "meta-llama/Llama-3.2-*", 32};
constexpr Release kTinyLlama = {Llama, 32000, 2048,
                                10000, 1e-5f, "Zhang et al. 2024, TinyLlama/TinyLlama-1.1B"};
constexpr Release kSmolLm2 = {Llama,  49152, 8192,
                              100000, 1e-5f, "Ben Allal et al. 2025, HuggingFaceTB/SmolLM2-*"};
constexpr Release kMistralV1 = {Mistral, 32000, 32768,
                                10000,   1e-5f, "Jiang et al. 2023, mistralai/Mistral-7B-v0.1",
                                0,       0.02f, 4096};
constexpr Release kMistralV2 = {Mistral,   32000, 32768,
                                1'000'000, 1e-5f, "mistralai/Mistral-7B-Instruct-v0.2"};
constexpr Release kMistralSmall = {Mistral,     131072, 32768,
                                   100'000'000, 1e-5f,  "mistralai/Mistral-Small-24B-Base-2501"};
constexpr Release kMistralV3 = {Mistral,   32768, 32768,
                                1'000'000, 1e-5f, "Jiang et al. 2023, mistralai/Mistral-7B-v0.3"};
constexpr Release kNemo = {Mistral,   131072, 131072,
                           1'000'000, 1e-5f,  "mistralai/Mistral-Nemo-Base-2407"};
// Positions, vocabulary and epsilon differ between the sizes.
constexpr Release Qwen25(int64_t vocab, int64_t positions, float eps) {
  return {Qwen2, vocab, positions, 1'000'000, eps, "Yang et al. 2024 (Qwen2.5), Qwen/Qwen2.5-*"};
}
constexpr Release kDistilled = {
    Qwen2, 151936, 131072,
    10000, 1e-6f,  "DeepSeek-AI 2025, deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"};
constexpr Release kQwen3Release = {Qwen3,     151936, 40960,
                                   1'000'000, 1e-6f,  "Yang et al. 2025 (Qwen3), Qwen/Qwen3-*"};

Release With(Release release, float theta, float init_std) {
  release.theta = theta;
  release.init_std = init_std;
  return release;
}

// Base and instruct versions of one shape; instruct versions of Qwen2.5 have fewer positions.
constexpr int64_t kShort = 32768, kLong = 131072;

}  // namespace

const std::vector<ModelPreset>& LlamaPresets() {
  constexpr bool kTied = true;
  static const std::vector<ModelPreset> presets = {
      Preset(kLlama2, {"llama2-7b", 32, 4096, {32, 32, 128}, 11008},
             {{"meta-llama/Llama-2-7b-hf"},
              {"meta-llama/Llama-2-7b-chat-hf"},
              {"meta-llama/Llama-2-7b"},
              {"lmsys/vicuna-7b-v1.5"}}),
      Preset(kLlama2, {"llama2-13b", 40, 5120, {40, 40, 128}, 13824},
             {{"meta-llama/Llama-2-13b-hf"},
              {"meta-llama/Llama-2-13b-chat-hf"},
              {"meta-llama/Llama-2-13b"},
              {"lmsys/vicuna-13b-v1.5"}}),
      Preset(kLlama2, {"llama2-70b", 80, 8192, {64, 8, 128}, 28672},
             {{"meta-llama/Llama-2-70b-hf"},
              {"meta-llama/Llama-2-70b-chat-hf"},
              {"meta-llama/Llama-2-70b"}}),
      Preset(kLlama31, {"llama3.1-8b", 32, 4096, {32, 8, 128}, 14336},
             {{"meta-llama/Llama-3.1-8B"},
              {"meta-llama/Llama-3.1-8B-Instruct"},
              {"meta-llama/Meta-Llama-3.1-8B"},
              {"meta-llama/Meta-Llama-3.1-8B-Instruct"},
              {"deepseek-ai/DeepSeek-R1-Distill-Llama-8B"}}),
      Preset(kLlama31, {"llama3.1-70b", 80, 8192, {64, 8, 128}, 28672},
             {{"meta-llama/Llama-3.1-70B"},
              {"meta-llama/Llama-3.1-70B-Instruct"},
              {"meta-llama/Llama-3.3-70B-Instruct"},
              {"meta-llama/Meta-Llama-3.1-70B"},
              {"meta-llama/Meta-Llama-3.1-70B-Instruct"},
              {"deepseek-ai/DeepSeek-R1-Distill-Llama-70B"}}),
      Preset(kLlama31, {"llama3.1-405b", 126, 16384, {128, 8, 128}, 53248},
             {{"meta-llama/Llama-3.1-405B"}, {"meta-llama/Llama-3.1-405B-Instruct"}}),
      Preset(kLlama3, {"llama3-8b", 32, 4096, {32, 8, 128}, 14336},
             {{"meta-llama/Meta-Llama-3-8B"}, {"meta-llama/Meta-Llama-3-8B-Instruct"}}),
      Preset(kLlama3, {"llama3-70b", 80, 8192, {64, 8, 128}, 28672},
             {{"meta-llama/Meta-Llama-3-70B"}, {"meta-llama/Meta-Llama-3-70B-Instruct"}}),
      Preset(kLlama32, {"llama3.2-1b", 16, 2048, {32, 8, 64}, 8192, kTied},
             {{"meta-llama/Llama-3.2-1B"}, {"meta-llama/Llama-3.2-1B-Instruct"}}),
      Preset(kLlama32, {"llama3.2-3b", 28, 3072, {24, 8, 128}, 8192, kTied},
             {{"meta-llama/Llama-3.2-3B"}, {"meta-llama/Llama-3.2-3B-Instruct"}}),
      Preset(kTinyLlama, {"tinyllama-1.1b", 22, 2048, {32, 4, 64}, 5632},
             {{"TinyLlama/TinyLlama-1.1B-Chat-v1.0"}, {"TinyLlama/TinyLlama_v1.1"}}),
      Preset(With(kSmolLm2, 100000, 1.0f / 24), {"smollm2-135m", 30, 576, {9, 3, 64}, 1536, kTied},
             {{"HuggingFaceTB/SmolLM2-135M"}, {"HuggingFaceTB/SmolLM2-135M-Instruct"}}),
      Preset(kSmolLm2, {"smollm2-360m", 32, 960, {15, 5, 64}, 2560, kTied},
             {{"HuggingFaceTB/SmolLM2-360M"}, {"HuggingFaceTB/SmolLM2-360M-Instruct"}}),
      Preset(With(kSmolLm2, 130000, 0.02f), {"smollm2-1.7b", 24, 2048, {32, 32, 64}, 8192, kTied},
             {{"HuggingFaceTB/SmolLM2-1.7B"}, {"HuggingFaceTB/SmolLM2-1.7B-Instruct"}}),
  };
  return presets;
}

const std::vector<ModelPreset>& MistralPresets() {
  static const std::vector<ModelPreset> presets = {
      Preset(kMistralV3, {"mistral-7b-v0.3", 32, 4096, {32, 8, 128}, 14336},
             {{"mistralai/Mistral-7B-v0.3"}, {"mistralai/Mistral-7B-Instruct-v0.3"}}),
      Preset(kMistralV2, {"mistral-7b-v0.2", 32, 4096, {32, 8, 128}, 14336},
             {{"mistralai/Mistral-7B-Instruct-v0.2"}}),
      Preset(kMistralV1, {"mistral-7b-v0.1", 32, 4096, {32, 8, 128}, 14336},
             {{"mistralai/Mistral-7B-v0.1"}, {"mistralai/Mistral-7B-Instruct-v0.1"}}),
      Preset(kNemo, {"mistral-nemo-12b", 40, 5120, {32, 8, 128}, 14336},
             {{"mistralai/Mistral-Nemo-Base-2407"}, {"mistralai/Mistral-Nemo-Instruct-2407"}}),
      Preset(kMistralSmall, {"mistral-small-24b", 40, 5120, {32, 8, 128}, 32768},
             {{"mistralai/Mistral-Small-24B-Base-2501"},
              {"mistralai/Mistral-Small-24B-Instruct-2501"}}),
  };
  return presets;
}

const std::vector<ModelPreset>& Qwen2Presets() {
  constexpr bool kTied = true;
  constexpr int64_t kSmall = 151936, kLarge = 152064;  // vocabularies
  static const std::vector<ModelPreset> presets = {
      Preset(Qwen25(kSmall, kShort, 1e-6f), {"qwen2.5-0.5b", 24, 896, {14, 2, 64}, 4864, kTied},
             {{"Qwen/Qwen2.5-0.5B"}, {"Qwen/Qwen2.5-0.5B-Instruct"}}),
      Preset(Qwen25(kSmall, kLong, 1e-6f), {"qwen2.5-1.5b", 28, 1536, {12, 2, 128}, 8960, kTied},
             {{"Qwen/Qwen2.5-1.5B"}, {"Qwen/Qwen2.5-1.5B-Instruct", kShort}}),
      // The same shape with a head of its own.
      Preset(kDistilled, {"deepseek-r1-distill-qwen-1.5b", 28, 1536, {12, 2, 128}, 8960},
             {{"deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"}}),
      Preset(Qwen25(kSmall, kShort, 1e-6f), {"qwen2.5-3b", 36, 2048, {16, 2, 128}, 11008, kTied},
             {{"Qwen/Qwen2.5-3B"}, {"Qwen/Qwen2.5-3B-Instruct"}}),
      Preset(Qwen25(kLarge, kLong, 1e-6f), {"qwen2.5-7b", 28, 3584, {28, 4, 128}, 18944},
             {{"Qwen/Qwen2.5-7B"},
              {"Qwen/Qwen2.5-7B-Instruct", kShort},
              {"Qwen/Qwen2.5-Coder-7B", kShort},
              {"Qwen/Qwen2.5-Coder-7B-Instruct", kShort},
              {"deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", kLong, 1e4f}}),
      Preset(Qwen25(kLarge, kLong, 1e-5f), {"qwen2.5-14b", 48, 5120, {40, 8, 128}, 13824},
             {{"Qwen/Qwen2.5-14B"},
              {"Qwen/Qwen2.5-14B-Instruct", kShort},
              {"deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"}}),
      Preset(Qwen25(kLarge, kLong, 1e-5f), {"qwen2.5-32b", 64, 5120, {40, 8, 128}, 27648},
             {{"Qwen/Qwen2.5-32B"},
              {"Qwen/Qwen2.5-32B-Instruct", kShort},
              {"deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"}}),
      Preset(Qwen25(kLarge, kLong, 1e-5f), {"qwen2.5-72b", 80, 8192, {64, 8, 128}, 29568},
             {{"Qwen/Qwen2.5-72B"}, {"Qwen/Qwen2.5-72B-Instruct", kShort}}),
  };
  return presets;
}

const std::vector<ModelPreset>& Qwen3Presets() {
  constexpr bool kTied = true;
  static const std::vector<ModelPreset> presets = {
      Preset(kQwen3Release, {"qwen3-0.6b", 28, 1024, {16, 8, 128}, 3072, kTied},
             {{"Qwen/Qwen3-0.6B"}, {"Qwen/Qwen3-0.6B-Base", kShort}}),
      Preset(kQwen3Release, {"qwen3-1.7b", 28, 2048, {16, 8, 128}, 6144, kTied},
             {{"Qwen/Qwen3-1.7B"}, {"Qwen/Qwen3-1.7B-Base", kShort}}),
      Preset(kQwen3Release, {"qwen3-4b", 36, 2560, {32, 8, 128}, 9728, kTied},
             {{"Qwen/Qwen3-4B"},
              {"Qwen/Qwen3-4B-Base", kShort},
              {"Qwen/Qwen3-4B-Instruct-2507", 262144, 5e6f}}),
      Preset(kQwen3Release, {"qwen3-8b", 36, 4096, {32, 8, 128}, 12288},
             {{"Qwen/Qwen3-8B"}, {"Qwen/Qwen3-8B-Base", kShort}}),
      Preset(kQwen3Release, {"qwen3-14b", 40, 5120, {40, 8, 128}, 17408},
             {{"Qwen/Qwen3-14B"}, {"Qwen/Qwen3-14B-Base", kShort}}),
      Preset(kQwen3Release, {"qwen3-32b", 64, 5120, {64, 8, 128}, 25600}, {{"Qwen/Qwen3-32B"}}),
  };
  return presets;
}

ModelPreset MixturePreset(const ModelFamily& family, const LlamaKind& kind, const MixtureSize& size,
                          const char* source, std::vector<PublishedName> published) {
  ModelSpec spec;
  spec.name = size.name;
  spec.family = &family;
  spec.qkv_bias = kind.qkv_bias;
  spec.qk_norm = kind.qk_norm;
  spec.qk_norm_whole = kind.qk_norm_whole;
  spec.layers = size.layers;
  spec.hidden = size.hidden;
  SetHeads({size.heads, size.kv_heads, size.head_size}, spec);
  spec.ffn = size.ffn;
  spec.expert_ffn = size.expert_ffn;
  spec.shared_ffn = size.shared_ffn;
  spec.experts = size.experts;
  spec.experts_per_token = size.experts_per_token;
  spec.normalized_gates = size.normalized;
  spec.router_aux_loss = size.aux_loss;
  spec.vocab = size.vocab;
  spec.padded_vocab = PadVocab(spec.vocab);
  spec.positions = size.positions;
  spec.layer_norm_eps = size.eps;
  spec.rope_theta = size.theta;
  spec.tied_head = false;
  return {spec, source, std::move(published)};
}

ModelSpec LlamaShape(const LlamaKind& kind, const ModelFamily& family, int64_t layers,
                     int64_t hidden, int64_t positions, bool byte_level) {
  ModelSpec spec;
  spec.family = &family;
  spec.qkv_bias = kind.qkv_bias;
  spec.qk_norm = kind.qk_norm;
  spec.qk_norm_whole = kind.qk_norm_whole;
  spec.layers = layers;
  spec.hidden = hidden;
  // Heads of 128 from 2048 on, of 64 below; byte-level models may be too narrow for either. Four
  // query heads share one of keys and values where they can.
  const int64_t size = hidden >= 2048 && hidden % 128 == 0 ? 128
                       : hidden % 64 == 0                  ? 64
                       : hidden % 32 == 0                  ? 32
                                                           : 16;
  const int64_t heads = hidden / size;
  SetHeads({heads, heads % 4 == 0 ? heads / 4 : heads, size}, spec);
  // 3.5 times the width, as Llama 3's 8B has it, in whole tiles.
  const int64_t tile = byte_level ? 16 : 128;
  spec.ffn = (7 * hidden / 2 + tile - 1) / tile * tile;
  if (const MixtureKind* mixture = kind.mixture) {
    spec.experts = byte_level ? 8 : mixture->experts;
    spec.experts_per_token = byte_level ? 2 : mixture->experts_per_token;
    const auto width = static_cast<int64_t>(mixture->shape_width * static_cast<double>(hidden));
    const int64_t expert_ffn = std::max(tile, width / tile * tile);
    (mixture->expert_ffn > 0 ? spec.expert_ffn : spec.ffn) = expert_ffn;
    if (mixture->shared_ffn > 0) spec.shared_ffn = 4 * expert_ffn;
    spec.normalized_gates = mixture->normalized;
    spec.router_aux_loss = static_cast<float>(mixture->aux_loss);
  }
  spec.vocab = byte_level ? 256 : kind.shape_vocab;
  spec.padded_vocab = PadVocab(spec.vocab);
  spec.positions = positions;
  spec.tied_head = hidden < kind.tied_below;
  spec.rope_theta = kind.shape_theta;
  spec.layer_norm_eps = kind.shape_eps;
  return spec;
}

}  // namespace zeroplan
