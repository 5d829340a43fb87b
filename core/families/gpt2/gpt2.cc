#include "core/families/gpt2/gpt2.h"

#include <cmath>
#include <vector>

#include "core/lowering/graph_builder.h"

namespace zeroplan {

namespace {

// ---- parameters ----

// Its parameters, in forward order. Within a layer: ln_1, c_attn, c_proj, ln_2, c_fc, mlp.c_proj.
enum Gpt2Param : int {
  kWte,  // [Vp, C], the head too where that is tied
  kWpe,  // [positions, C]
  kLn1W,
  kLn1B,
  kQkvW,  // [C, 3C]: query, key, value of all heads
  kQkvB,
  kProjW,  // [C, C]
  kProjB,
  kLn2W,
  kLn2B,
  kFcW,  // [C, F]
  kFcB,
  kFcProjW,  // [F, C]
  kFcProjB,
  kLnfW,
  kLnfB,
  kLmHead,  // [Vp, C], where it is not tied
};

constexpr InitKind kZeros = InitKind::kZeros, kOnes = InitKind::kOnes;

constexpr const char* kHeadName = "lm_head.weight";

// [Vp, C], of which exports hold V rows.
ParamRow VocabularyRow(int id, const char* name, const ModelSpec& spec, ParamUse use) {
  ParamRow row = MatrixRow(id, name, spec.padded_vocab, spec.hidden, spec.init_std);
  row.unpadded_rows = spec.vocab;
  row.use = use;
  row.out_in = true;
  return row;
}

ParamRow TokenEmbedding(const ModelSpec& spec) {
  ParamRow wte = VocabularyRow(kWte, "transformer.wte.weight", spec,
                               spec.tied_head ? ParamUse::kHead : ParamUse::kOther);
  if (spec.tied_head) wte.twin = kHeadName;
  return wte;
}

ParamRow PositionEmbedding(const ModelSpec& spec) {
  ParamRow wpe =
      MatrixRow(kWpe, "transformer.wpe.weight", spec.positions, spec.hidden, spec.init_std);
  wpe.use = ParamUse::kOther;
  return wpe;
}

ParamRows Gpt2Params(const ModelSpec& spec) {
  const int64_t c = spec.hidden, f = spec.ffn;
  const float std = spec.init_std;
  // What writes into the residual stream is scaled, so that its variance does not grow with depth.
  const float residual_std = std / std::sqrt(2.0f * static_cast<float>(spec.layers));
  ParamRows rows = {
      .before = {TokenEmbedding(spec), PositionEmbedding(spec)},
      .layer = {VectorRow(kLn1W, "ln_1.weight", c, kOnes), VectorRow(kLn1B, "ln_1.bias", c, kZeros),
                MatrixRow(kQkvW, "attn.c_attn.weight", c, 3 * c, std),
                VectorRow(kQkvB, "attn.c_attn.bias", 3 * c, kZeros),
                MatrixRow(kProjW, "attn.c_proj.weight", c, c, residual_std),
                VectorRow(kProjB, "attn.c_proj.bias", c, kZeros),
                VectorRow(kLn2W, "ln_2.weight", c, kOnes), VectorRow(kLn2B, "ln_2.bias", c, kZeros),
                MatrixRow(kFcW, "mlp.c_fc.weight", c, f, std),
                VectorRow(kFcB, "mlp.c_fc.bias", f, kZeros),
                MatrixRow(kFcProjW, "mlp.c_proj.weight", f, c, residual_std),
                VectorRow(kFcProjB, "mlp.c_proj.bias", c, kZeros)},
      .after = {VectorRow(kLnfW, "transformer.ln_f.weight", c, kOnes),
                VectorRow(kLnfB, "transformer.ln_f.bias", c, kZeros)},
      .layer_prefix = "transformer.h."};
  if (!spec.tied_head) {
    rows.after.push_back(VocabularyRow(kLmHead, kHeadName, spec, ParamUse::kHead));
  }
  return rows;
}

// ---- published shapes, and what shapes between them look like ----

constexpr const char* kGpt2 = "Radford et al. 2019, as published on Hugging Face";
constexpr const char* kGpt3 =
    "Brown et al. 2020, table 2.1; positions 1024 and the GPT-2 architecture";

int64_t HeadsFor(int64_t hidden) {
  // Heads of 128 from GPT-3's 1.3B on, of 64 below; byte-level models may be too narrow for either.
  if (hidden >= 2048 && hidden % 128 == 0) return hidden / 128;
  if (hidden % 64 == 0) return hidden / 64;
  return hidden % 32 == 0 ? hidden / 32 : hidden / 16;
}

ModelSpec Gpt2Shape(int64_t layers, int64_t hidden, int64_t positions, bool byte_level) {
  ModelSpec spec;
  spec.family = &Gpt2();
  spec.layers = layers;
  spec.hidden = hidden;
  spec.heads = HeadsFor(hidden);
  spec.ffn = 4 * hidden;
  spec.vocab = byte_level ? 256 : 50257;
  spec.padded_vocab = PadVocab(spec.vocab);
  spec.positions = positions;
  return spec;
}

ModelPreset Preset(const char* name, int64_t layers, int64_t hidden, int64_t heads,
                   const char* source, const char* published = nullptr) {
  ModelSpec spec = Gpt2Shape(layers, hidden, 1024, false);
  spec.name = name;
  spec.heads = heads;
  ModelPreset preset = {std::move(spec), source};
  if (published != nullptr) preset.published = {{published}};
  return preset;
}

const std::vector<ModelPreset>& Gpt2Presets() {
  static const std::vector<ModelPreset> presets = {
      Preset("gpt2", 12, 768, 12, kGpt2, "openai-community/gpt2"),
      Preset("gpt2-medium", 24, 1024, 16, kGpt2, "openai-community/gpt2-medium"),
      Preset("gpt2-large", 36, 1280, 20, kGpt2, "openai-community/gpt2-large"),
      Preset("gpt2-xl", 48, 1600, 25, kGpt2, "openai-community/gpt2-xl"),
      // The table prints 24 heads of 128 for a width of 2048; 16 of them make that width.
      Preset("gpt3-1.3b", 24, 2048, 16, kGpt3),
      Preset("gpt3-2.7b", 32, 2560, 32, kGpt3),
      Preset("gpt3-6.7b", 32, 4096, 32, kGpt3),
      // The table prints a width of 5140, which 40 heads of 128 do not make; 5120 they do.
      Preset("gpt3-13b", 40, 5120, 40, kGpt3),
      Preset("gpt2-10b", 50, 4096, 32, "Rajbhandari et al. 2020 (ZeRO), appendix: 10B, 50 x 4096"),
  };
  return presets;
}

// ---- the graph. Legend: C hidden, F ffn, M = B*T rows ----

// What a layer's backward needs of its forward.
struct Block {
  Norm ln1;
  Linear qkv;
  Attention attention;
  Linear proj;
  Norm ln2;
  Linear fc;  // with GELU
  Linear fc_proj;
};

class Gpt2Graph : public ModelGraph {
 public:
  explicit Gpt2Graph(GraphBuilder& g) : g_(g), blocks_(static_cast<size_t>(g.model().layers)) {}

  Value Embed() override { return g_.Embedding(kWte, kWpe, {"residual", 0}); }

  Value Layer(int layer, const Value& x_MC) override {
    Block& b = blocks_[static_cast<size_t>(layer)];
    b.ln1 = g_.NormForward(x_MC, kLn1W, kLn1B, "ln1");
    b.qkv = g_.LinearForward(b.ln1.y_MC, kQkvW, kQkvB, "qkv");
    b.attention = g_.AttentionForward(b.qkv.y_MN, "attention");
    b.proj = g_.LinearForward(b.attention.out_MHD, kProjW, kProjB, "middle", x_MC);
    b.ln2 = g_.NormForward(b.proj.y_MN, kLn2W, kLn2B, "ln2");
    b.fc = g_.LinearGeluForward(b.ln2.y_MC, kFcW, kFcB, "fc", "gelu");
    b.fc_proj =
        g_.LinearForward(b.fc.y_MN, kFcProjW, kFcProjB, {"residual", layer + 1}, b.proj.y_MN);
    return b.fc_proj.y_MN;
  }

  Value Final(const Value& x_MC) override {
    final_ = g_.NormForward(x_MC, kLnfW, kLnfB, "ln_f");
    return final_.y_MC;
  }

  int head() const override { return g_.model().tied_head ? kWte : kLmHead; }

  // One buffer holds the gradient of the residual stream all the way.
  Value FinalBackward(const Value& dy_MC) override {
    const Value dresidual_MC = g_.Gradient({"d_residual", -2}, dy_MC.cols);
    g_.NormBackward(final_, dy_MC, dresidual_MC, false);
    return dresidual_MC;
  }

  void LayerBackward(int layer, const Value& dresidual_MC) override {
    const Block& b = blocks_[static_cast<size_t>(layer)];
    const Value dfc_MF = g_.LinearBackwardThroughGelu(b.fc_proj, b.fc, dresidual_MC, "d_fc");
    const Value dln2_MC = g_.LinearBackward(b.fc, dfc_MF, "d_ln2");
    g_.NormBackward(b.ln2, dln2_MC, dresidual_MC, true);

    const Value dattention_MC = g_.LinearBackward(b.proj, dresidual_MC, "d_attention");
    const Value dqkv_M3C = g_.AttentionBackward(b.attention, dattention_MC, "d_qkv");
    const Value dln1_MC = g_.LinearBackward(b.qkv, dqkv_M3C, "d_ln1");
    g_.NormBackward(b.ln1, dln1_MC, dresidual_MC, true);
  }

  void EmbedBackward(const Value& dx_MC) override { g_.EmbeddingBackward(kWte, kWpe, dx_MC); }

 private:
  GraphBuilder& g_;
  std::vector<Block> blocks_;
  Norm final_;
};

class Gpt2Family : public ModelFamily {
 public:
  std::string_view name() const override { return "gpt2"; }

  ParamRows Params(const ModelSpec& spec) const override { return Gpt2Params(spec); }
  // GPT2Model, the model without its head, is saved without it.
  std::string_view optional_prefix() const override { return "transformer."; }
  bool learned_positions() const override { return true; }
  // Attention masks, which old versions of transformers saved.
  bool PassedOver(std::string_view tensor) const override {
    return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias");
  }

  std::unique_ptr<ModelGraph> MakeGraph(GraphBuilder& builder) const override {
    return std::make_unique<Gpt2Graph>(builder);
  }

  std::string_view ConfigKey(std::string_view field) const override { return Gpt2ConfigKey(field); }
  ModelSpec ReadConfig(JsonSection* config, std::vector<std::string>* notes) const override {
    return ReadGpt2Config(config, notes);
  }
  std::string WriteConfig(const ModelSpec& spec) const override { return WriteGpt2Config(spec); }

  const std::vector<ModelPreset>& presets() const override { return Gpt2Presets(); }
  ModelSpec Shape(int64_t layers, int64_t hidden, int64_t positions,
                  bool byte_level) const override {
    return Gpt2Shape(layers, hidden, positions, byte_level);
  }
};

}  // namespace

const ModelFamily& Gpt2() {
  static const Gpt2Family family;
  return family;
}

}  // namespace zeroplan
