#include "core/families/llama/llama.h"

#include "core/lowering/graph_builder.h"

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

namespace {

using enum LlamaParam::Id;

// As torch.nn.Linear saves it.
ParamRow LinearRow(int id, const char* name, int64_t out, int64_t in, float init_std) {
  ParamRow row = MatrixRow(id, name, out, in, init_std);
  row.out_in = true;
  return row;
}

// [Vp, C], of which exports hold V rows.
ParamRow VocabularyRow(int id, const char* name, const ModelSpec& spec, ParamUse use) {
  ParamRow row = LinearRow(id, name, spec.padded_vocab, spec.hidden, spec.init_std);
  row.unpadded_rows = spec.vocab;
  row.use = use;
  return row;
}

ParamRow Parts(ParamRow row, std::vector<ParamPart> parts) {
  row.parts = std::move(parts);
  return row;
}

std::vector<ParamRow> LayerRows(const ModelSpec& spec) {
  const int64_t c = spec.hidden, f = spec.ffn, d = spec.HeadSize();
  const int64_t q = spec.heads * d, kv = spec.KvHeads() * d, n = spec.QkvColumns();
  const float std = spec.init_std;
  constexpr InitKind kZeros = InitKind::kZeros, kOnes = InitKind::kOnes;
  std::vector<ParamRow> rows = {VectorRow(kInputNorm, "input_layernorm.weight", c, kOnes),
                                Parts(LinearRow(kQkvW, "self_attn.qkv_proj.weight", n, c, std),
                                      {{"self_attn.q_proj.weight", q},
                                       {"self_attn.k_proj.weight", kv},
                                       {"self_attn.v_proj.weight", kv}})};
  if (spec.qkv_bias) {
    rows.push_back(Parts(VectorRow(kQkvB, "self_attn.qkv_proj.bias", n, kZeros),
                         {{"self_attn.q_proj.bias", q},
                          {"self_attn.k_proj.bias", kv},
                          {"self_attn.v_proj.bias", kv}}));
  }
  if (spec.qk_norm) {
    rows.push_back(Parts(VectorRow(kQkNorm, "self_attn.qk_norm.weight", 2 * d, kOnes),
                         {{"self_attn.q_norm.weight", d}, {"self_attn.k_norm.weight", d}}));
  }
  rows.push_back(LinearRow(kOutW, "self_attn.o_proj.weight", c, q, std));
  if (spec.out_bias) rows.push_back(VectorRow(kOutB, "self_attn.o_proj.bias", c, kZeros));
  rows.push_back(VectorRow(kMlpNorm, "post_attention_layernorm.weight", c, kOnes));
  rows.push_back(Parts(LinearRow(kGateUpW, "mlp.gate_up_proj.weight", 2 * f, c, std),
                       {{"mlp.gate_proj.weight", f}, {"mlp.up_proj.weight", f}}));
  if (spec.mlp_bias) {
    rows.push_back(Parts(VectorRow(kGateUpB, "mlp.gate_up_proj.bias", 2 * f, kZeros),
                         {{"mlp.gate_proj.bias", f}, {"mlp.up_proj.bias", f}}));
  }
  rows.push_back(LinearRow(kDownW, "mlp.down_proj.weight", c, f, std));
  if (spec.mlp_bias) rows.push_back(VectorRow(kDownB, "mlp.down_proj.bias", c, kZeros));
  return rows;
}

}  // namespace

ParamRows LlamaParams(const ModelSpec& spec) {
  ParamRow tokens = VocabularyRow(kEmbedTokens, "model.embed_tokens.weight", spec,
                                  spec.tied_head ? ParamUse::kHead : ParamUse::kOther);
  if (spec.tied_head) tokens.twin = "lm_head.weight";
  ParamRows rows = {
      .before = {tokens},
      .layer = LayerRows(spec),
      .after = {VectorRow(kFinalNorm, "model.norm.weight", spec.hidden, InitKind::kOnes)},
      .layer_prefix = "model.layers.",
  };
  if (!spec.tied_head) {
    rows.after.push_back(VocabularyRow(kLmHead, "lm_head.weight", spec, ParamUse::kHead));
  }
  return rows;
}

}  // namespace zeroplan
