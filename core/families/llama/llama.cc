#include "core/families/llama/llama.h"

#include "core/lowering/model_graph.h"

namespace zeroplan {
namespace {

// Defaults as in transformers' LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config.
constexpr LlamaKind kLlama = {.name = "llama",
                              .architecture = "LlamaForCausalLM",
                              .layers = 32,
                              .hidden = 4096,
                              .heads = 32,
                              .ffn = 11008,
                              .vocab = 32000,
                              .positions = 2048,
                              .eps = 1e-6,
                              .attention_bias = true,
                              .mlp_bias = true,
                              .tied_below = 4096,
                              .shape_vocab = 128256,
                              .shape_theta = 500000,
                              .shape_eps = 1e-5f};
constexpr LlamaKind kMistral = {.name = "mistral",
                                .architecture = "MistralForCausalLM",
                                .layers = 32,
                                .hidden = 4096,
                                .heads = 32,
                                .ffn = 14336,
                                .vocab = 32000,
                                .positions = 131072,
                                .kv_heads = 8,
                                .sliding_window = 4096,
                                .eps = 1e-6,
                                .shape_vocab = 32768,
                                .shape_theta = 1'000'000,
                                .shape_eps = 1e-5f};
constexpr LlamaKind kQwen2 = {.name = "qwen2",
                              .architecture = "Qwen2ForCausalLM",
                              .layers = 32,
                              .hidden = 4096,
                              .heads = 32,
                              .ffn = 22016,
                              .vocab = 151936,
                              .positions = 32768,
                              .kv_heads = 32,
                              .sliding_window = 4096,
                              .eps = 1e-6,
                              .window_switch = true,
                              .qkv_bias = true,
                              .tied_below = 3072,
                              .shape_vocab = 151936,
                              .shape_theta = 1'000'000,
                              .shape_eps = 1e-6f};
constexpr LlamaKind kQwen3 = {.name = "qwen3",
                              .architecture = "Qwen3ForCausalLM",
                              .layers = 32,
                              .hidden = 4096,
                              .heads = 32,
                              .ffn = 22016,
                              .vocab = 151936,
                              .positions = 32768,
                              .kv_heads = 32,
                              .head_size = 128,
                              .sliding_window = 4096,
                              .eps = 1e-6,
                              .attention_bias = true,
                              .window_switch = true,
                              .qk_norm = true,
                              .tied_below = 3072,
                              .shape_vocab = 151936,
                              .shape_theta = 1'000'000,
                              .shape_eps = 1e-6f};

class LlamaFamily : public ModelFamily {
 public:
  LlamaFamily(const LlamaKind& kind, const std::vector<ModelPreset>& (*list)())
      : kind_(kind), presets_(list) {}

  std::string_view name() const override { return kind_.name; }

  ParamRows Params(const ModelSpec& spec) const override { return LlamaParams(spec); }
  // LlamaModel, the model without its head, is saved without it.
  std::string_view optional_prefix() const override { return "model."; }
  // Frequencies, which old versions of transformers saved.
  bool PassedOver(std::string_view tensor) const override {
    return tensor.ends_with(".rotary_emb.inv_freq");
  }

  std::unique_ptr<ModelGraph> MakeGraph(GraphBuilder& builder) const override {
    return MakeLlamaGraph(builder);
  }

  std::string_view ConfigKey(std::string_view field) const override {
    return LlamaConfigKey(field);
  }
  ModelSpec ReadConfig(JsonSection* config, std::vector<std::string>* notes) const override {
    return ReadLlamaConfig(kind_, config, notes);
  }
  std::string WriteConfig(const ModelSpec& spec) const override {
    return WriteLlamaConfig(kind_, spec);
  }

  const std::vector<ModelPreset>& presets() const override { return presets_(); }
  ModelSpec Shape(int64_t layers, int64_t hidden, int64_t positions,
                  bool byte_level) const override {
    return LlamaShape(kind_, *this, layers, hidden, positions, byte_level);
  }

 private:
  const LlamaKind& kind_;
  const std::vector<ModelPreset>& (*presets_)();
};

}  // namespace

const ModelFamily& Llama() {
  static const LlamaFamily family(kLlama, LlamaPresets);
  return family;
}
const ModelFamily& Mistral() {
  static const LlamaFamily family(kMistral, MistralPresets);
  return family;
}
const ModelFamily& Qwen2() {
  static const LlamaFamily family(kQwen2, Qwen2Presets);
  return family;
}
const ModelFamily& Qwen3() {
  static const LlamaFamily family(kQwen3, Qwen3Presets);
  return family;
}

}  // namespace zeroplan
