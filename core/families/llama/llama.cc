#include "core/families/llama/llama.h"

#include <iterator>
#include <utility>
#include <vector>

#include "core/lowering/graph_builder.h"

namespace zeroplan {

namespace {

// ---- parameters ----

// Parameters, in forward order. Those of biases and of norms of heads are there where the model has
// them. H query heads and G key heads of size D; N = (H+2G)*D.
enum LlamaParam : int {
  kEmbedTokens,  // [Vp, C], the head too where that is tied
  kInputNorm,
  kQkvW,  // [N, C]: query, key, value
  kQkvB,
  kQkNorm,  // [2D]: of a query head, of a key head; over all heads [(H+G)*D]
  kOutW,    // [C, H*D]
  kOutB,
  kMlpNorm,
  kGateUpW,  // [2F, C]; of a shared expert where a layer has experts
  kGateUpB,
  kDownW,  // [C, F]
  kDownB,
  kRouter,         // [E, C], with a shared expert [E+1, C]
  kExpertsGateUp,  // [E*2F, C]
  kExpertsDown,    // [E*C, F]
  kFinalNorm,
  kLmHead,  // [Vp, C], where it is not tied
};

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

constexpr ExpertParams kExpertIds = {.router = kRouter,
                                     .gate_up = kExpertsGateUp,
                                     .down = kExpertsDown,
                                     .shared_gate_up = kGateUpW,
                                     .shared_down = kDownW};

std::vector<ParamRow> MlpRows(const ModelSpec& spec) {
  const int64_t c = spec.hidden, f = spec.ffn;
  const float std = spec.init_std;
  constexpr InitKind kZeros = InitKind::kZeros;
  std::vector<ParamRow> rows = {Parts(LinearRow(kGateUpW, "mlp.gate_up_proj.weight", 2 * f, c, std),
                                      {{"mlp.gate_proj.weight", f}, {"mlp.up_proj.weight", f}})};
  if (spec.mlp_bias) {
    rows.push_back(Parts(VectorRow(kGateUpB, "mlp.gate_up_proj.bias", 2 * f, kZeros),
                         {{"mlp.gate_proj.bias", f}, {"mlp.up_proj.bias", f}}));
  }
  rows.push_back(LinearRow(kDownW, "mlp.down_proj.weight", c, f, std));
  if (spec.mlp_bias) rows.push_back(VectorRow(kDownB, "mlp.down_proj.bias", c, kZeros));
  return rows;
}

// All rows but those of the MLP or the experts.
std::vector<ParamRow> AttentionRows(const ModelSpec& spec) {
  const int64_t c = spec.hidden, d = spec.HeadSize();
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
  if (spec.qk_norm_whole) {
    rows.push_back(Parts(VectorRow(kQkNorm, "self_attn.qk_norm.weight", q + kv, kOnes),
                         {{"self_attn.q_norm.weight", q}, {"self_attn.k_norm.weight", kv}}));
  } else if (spec.qk_norm) {
    rows.push_back(Parts(VectorRow(kQkNorm, "self_attn.qk_norm.weight", 2 * d, kOnes),
                         {{"self_attn.q_norm.weight", d}, {"self_attn.k_norm.weight", d}}));
  }
  rows.push_back(LinearRow(kOutW, "self_attn.o_proj.weight", c, q, std));
  if (spec.out_bias) rows.push_back(VectorRow(kOutB, "self_attn.o_proj.bias", c, kZeros));
  rows.push_back(VectorRow(kMlpNorm, "post_attention_layernorm.weight", c, kOnes));
  return rows;
}

void Append(std::vector<ParamRow> rows, std::vector<ParamRow>& to) {
  to.insert(to.end(), std::make_move_iterator(rows.begin()), std::make_move_iterator(rows.end()));
}

ParamRows LlamaParams(const LlamaKind& kind, const ModelSpec& spec) {
  ParamRow tokens = VocabularyRow(kEmbedTokens, "model.embed_tokens.weight", spec,
                                  spec.tied_head ? ParamUse::kHead : ParamUse::kOther);
  if (spec.tied_head) tokens.twin = "lm_head.weight";
  ParamRows rows = {
      .before = {tokens},
      .layer = AttentionRows(spec),
      .after = {VectorRow(kFinalNorm, "model.norm.weight", spec.hidden, InitKind::kOnes)},
      .layer_prefix = "model.layers.",
  };
  if (!spec.tied_head) {
    rows.after.push_back(VocabularyRow(kLmHead, "lm_head.weight", spec, ParamUse::kHead));
  }
  const auto mlp = [&](bool experts) {
    return experts ? ExpertRows(*kind.mixture, spec, kExpertIds) : MlpRows(spec);
  };
  if (spec.experts == 0 || spec.dense_layers.empty()) {
    Append(mlp(spec.experts > 0), rows.layer);
    return rows;
  }
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    rows.own.push_back(mlp(spec.HasExperts(layer)));
  }
  return rows;
}

// ---- the graph. Legend: C hidden, F ffn, H heads of queries, G of keys and values, D head size,
// N = (H+2G)*D, M = B*T rows ----

// What a layer's backward needs of its forward.
struct Block {
  Norm input;
  Linear qkv;
  Rotary rotary;
  Attention attention;
  Linear out;
  Norm mlp;
  SwiGlu swiglu;
  Linear down;
  Experts experts;  // in place of the last two
};

class LlamaGraph : public ModelGraph {
 public:
  explicit LlamaGraph(GraphBuilder& g)
      : g_(g),
        blocks_(static_cast<size_t>(g.model().layers)),
        has_experts_(blocks_.size(), g.model().experts > 0) {
    for (const int64_t layer : DenseLayers(g.model())) {
      has_experts_[static_cast<size_t>(layer)] = false;
    }
  }

  Value Embed() override {
    rotary_table_ = g_.RotaryTable();
    return g_.Embedding(kEmbedTokens, kNoParam, {"residual", 0});
  }

  Value Layer(int layer, const Value& x_MC) override {
    const ModelSpec& model = g_.model();
    Block& b = blocks_[static_cast<size_t>(layer)];
    b.input = g_.RmsNormForward(x_MC, kInputNorm, "input_norm");
    b.qkv = g_.LinearForward(b.input.y_MC, kQkvW, If(model.qkv_bias, kQkvB), "qkv");
    const Value qkv_MN = g_.ToHeads(b.qkv.y_MN, "qkv_heads");
    b.rotary = g_.RotaryForward(qkv_MN, If(model.qk_norm, kQkNorm), rotary_table_, "qkv_rotated");
    b.attention = g_.AttentionForward(b.rotary.out_MN, "attention");
    const Value attention_MHD = g_.ToRows(b.attention.out_MHD, "attention_rows");
    b.out = g_.LinearForward(attention_MHD, kOutW, If(model.out_bias, kOutB), "middle", x_MC);
    b.mlp = g_.RmsNormForward(b.out.y_MN, kMlpNorm, "mlp_norm");
    if (has_experts_[static_cast<size_t>(layer)]) {
      b.experts = g_.ExpertsForward(b.mlp.y_MC, kExpertIds, {"residual", layer + 1}, b.out.y_MN);
      return b.experts.y_MC;
    }
    b.swiglu =
        g_.SwiGluForward(b.mlp.y_MC, kGateUpW, If(model.mlp_bias, kGateUpB), "gate_up", "swiglu");
    b.down = g_.LinearForward(b.swiglu.y_MF, kDownW, If(model.mlp_bias, kDownB),
                              {"residual", layer + 1}, b.out.y_MN);
    return b.down.y_MN;
  }

  Value Final(const Value& x_MC) override {
    final_ = g_.RmsNormForward(x_MC, kFinalNorm, "final_norm");
    return final_.y_MC;
  }

  int head() const override { return g_.model().tied_head ? kEmbedTokens : kLmHead; }

  // One buffer holds the gradient of the residual stream all the way.
  Value FinalBackward(const Value& dy_MC) override {
    const Value dresidual_MC = g_.Gradient({"d_residual", -2}, dy_MC.cols);
    g_.RmsNormBackward(final_, dy_MC, dresidual_MC, false);
    return dresidual_MC;
  }

  void LayerBackward(int layer, const Value& dresidual_MC) override {
    const Block& b = blocks_[static_cast<size_t>(layer)];
    const Value dmlp_MC = MlpBackward(layer, dresidual_MC);
    g_.RmsNormBackward(b.mlp, dmlp_MC, dresidual_MC, true);

    const Value dattention_MHD = g_.LinearBackward(b.out, dresidual_MC, "d_attention");
    const Value dheads_MHD = g_.ToRowsBackward(dattention_MHD, "d_attention_heads");
    const Value dqkv_MN = g_.AttentionBackward(b.attention, dheads_MHD, "d_qkv");
    g_.RotaryBackward(b.rotary, dqkv_MN);
    const Value drows_MN = g_.ToHeadsBackward(dqkv_MN, "d_qkv_rows");
    const Value dinput_MC = g_.LinearBackward(b.qkv, drows_MN, "d_input_norm");
    g_.RmsNormBackward(b.input, dinput_MC, dresidual_MC, true);
  }

  void EmbedBackward(const Value& dx_MC) override {
    g_.EmbeddingBackward(kEmbedTokens, kNoParam, dx_MC);
  }

 private:
  static int If(bool has, int param) { return has ? param : kNoParam; }

  Value MlpBackward(int layer, const Value& dresidual_MC) {
    const Block& b = blocks_[static_cast<size_t>(layer)];
    if (has_experts_[static_cast<size_t>(layer)]) {
      return g_.ExpertsBackward(b.experts, dresidual_MC, "d_mlp_norm");
    }
    const Value dswiglu_MF = g_.LinearBackward(b.down, dresidual_MC, "d_swiglu");
    return g_.SwiGluBackward(b.swiglu, dswiglu_MF, "d_mlp_norm");
  }

  GraphBuilder& g_;
  std::vector<Block> blocks_;
  std::vector<bool> has_experts_;  // by layer
  BufferId rotary_table_ = kNoBuffer;
  Norm final_;
};

// ---- the families ----

// Defaults as in transformers' LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config.
constexpr LlamaKind kLlama = {.name = "llama",
                              .architecture = "LlamaForCausalLM",
                              .ffn = 11008,
                              .vocab = 32000,
                              .positions = 2048,
                              .attention_bias = true,
                              .mlp_bias = true,
                              .tied_below = 4096,
                              .shape_vocab = 128256,
                              .shape_theta = 500000,
                              .shape_eps = 1e-5f};
constexpr LlamaKind kMistral = {.name = "mistral",
                                .architecture = "MistralForCausalLM",
                                .ffn = 14336,
                                .vocab = 32000,
                                .positions = 131072,
                                .kv_heads = 8,
                                .sliding_window = 4096,
                                .shape_vocab = 32768,
                                .shape_theta = 1'000'000,
                                .shape_eps = 1e-5f};
constexpr LlamaKind kQwen2 = {.name = "qwen2",
                              .architecture = "Qwen2ForCausalLM",
                              .ffn = 22016,
                              .vocab = 151936,
                              .positions = 32768,
                              .kv_heads = 32,
                              .sliding_window = 4096,
                              .window_switch = true,
                              .qkv_bias = true,
                              .tied_below = 3072,
                              .shape_vocab = 151936,
                              .shape_theta = 1'000'000,
                              .shape_eps = 1e-6f};
constexpr LlamaKind kQwen3 = {.name = "qwen3",
                              .architecture = "Qwen3ForCausalLM",
                              .ffn = 22016,
                              .vocab = 151936,
                              .positions = 32768,
                              .kv_heads = 32,
                              .head_size = 128,
                              .sliding_window = 4096,
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

  ParamRows Params(const ModelSpec& spec) const override { return LlamaParams(kind_, spec); }
  // LlamaModel, the model without its head, is saved without it.
  std::string_view optional_prefix() const override { return "model."; }
  // Frequencies, which old versions of transformers saved.
  bool PassedOver(std::string_view tensor) const override {
    return tensor.ends_with(".rotary_emb.inv_freq");
  }

  std::unique_ptr<ModelGraph> MakeGraph(GraphBuilder& builder) const override {
    return std::make_unique<LlamaGraph>(builder);
  }

  std::string_view ConfigKey(std::string_view field) const override {
    const bool local = kind_.mixture != nullptr && kind_.mixture->mixtral_names;
    return local && field == "num_experts" ? "num_local_experts" : LlamaConfigKey(field);
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

template <const LlamaKind& kKind, const std::vector<ModelPreset>& (*kPresets)()>
const ModelFamily& FamilyOf() {
  static const LlamaFamily family(kKind, kPresets);
  return family;
}

}  // namespace

std::unique_ptr<const ModelFamily> MakeLlamaFamily(const LlamaKind& kind,
                                                   const std::vector<ModelPreset>& (*presets)()) {
  return std::make_unique<LlamaFamily>(kind, presets);
}

const ModelFamily& Llama() { return FamilyOf<kLlama, LlamaPresets>(); }
const ModelFamily& Mistral() { return FamilyOf<kMistral, MistralPresets>(); }
const ModelFamily& Qwen2() { return FamilyOf<kQwen2, Qwen2Presets>(); }
const ModelFamily& Qwen3() { return FamilyOf<kQwen3, Qwen3Presets>(); }

}  // namespace zeroplan
