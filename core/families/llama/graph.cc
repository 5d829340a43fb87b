// The graph of llama's kind. Legend: C hidden, F ffn, H heads of queries, G of keys and values, D
// head size, N = (H+2G)*D, M = B*T rows.
#include <vector>

#include "core/families/llama/llama.h"
#include "core/lowering/graph_builder.h"

namespace zeroplan {
namespace {

using enum LlamaParam::Id;

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
};

class LlamaGraph : public ModelGraph {
 public:
  explicit LlamaGraph(GraphBuilder& g) : g_(g), blocks_(static_cast<size_t>(g.model().layers)) {}

  Value Embed() override {
    rotary_table_ = g_.RotaryTable();
    return g_.Embedding(kEmbedTokens, kNoParam, {"residual", 0});
  }

  Value Layer(int layer, const Value& x_MC) override {
    const ModelSpec& model = g_.model();
    Block& b = blocks_[static_cast<size_t>(layer)];
    b.input = g_.RmsNormForward(x_MC, kInputNorm, "input_norm");
    b.qkv = g_.LinearForward(b.input.y_MC, kQkvW, If(model.qkv_bias, kQkvB), "qkv");
    b.rotary =
        g_.RotaryForward(b.qkv.y_MN, If(model.qk_norm, kQkNorm), rotary_table_, "qkv_rotated");
    b.attention = g_.AttentionForward(b.rotary.out_MN, "attention");
    b.out = g_.LinearForward(b.attention.out_MHD, kOutW, If(model.out_bias, kOutB), "middle", x_MC);
    b.mlp = g_.RmsNormForward(b.out.y_MN, kMlpNorm, "mlp_norm");
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
    const Value dswiglu_MF = g_.LinearBackward(b.down, dresidual_MC, "d_swiglu");
    const Value dmlp_MC = g_.SwiGluBackward(b.swiglu, dswiglu_MF, "d_mlp_norm");
    g_.RmsNormBackward(b.mlp, dmlp_MC, dresidual_MC, true);

    const Value dattention_MHD = g_.LinearBackward(b.out, dresidual_MC, "d_attention");
    const Value dqkv_MN = g_.AttentionBackward(b.attention, dattention_MHD, "d_qkv");
    g_.RotaryBackward(b.rotary, dqkv_MN);
    const Value dinput_MC = g_.LinearBackward(b.qkv, dqkv_MN, "d_input_norm");
    g_.RmsNormBackward(b.input, dinput_MC, dresidual_MC, true);
  }

  void EmbedBackward(const Value& dx_MC) override {
    g_.EmbeddingBackward(kEmbedTokens, kNoParam, dx_MC);
  }

 private:
  static int If(bool has, int param) { return has ? param : kNoParam; }

  GraphBuilder& g_;
  std::vector<Block> blocks_;
  BufferId rotary_table_ = kNoBuffer;
  Norm final_;
};

}  // namespace

std::unique_ptr<ModelGraph> MakeLlamaGraph(GraphBuilder& builder) {
  return std::make_unique<LlamaGraph>(builder);
}

}  // namespace zeroplan
