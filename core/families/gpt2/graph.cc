// GPT-2's graph. Legend: C hidden, F ffn, M = B*T rows.
#include <vector>

#include "core/families/gpt2/gpt2.h"
#include "core/lowering/graph_builder.h"

namespace zeroplan {
namespace {

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

  int head() const override { return kWte; }

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

}  // namespace

std::unique_ptr<ModelGraph> MakeGpt2Graph(GraphBuilder& builder) {
  return std::make_unique<Gpt2Graph>(builder);
}

}  // namespace zeroplan
