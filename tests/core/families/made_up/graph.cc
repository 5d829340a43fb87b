#include <vector>

#include "core/lowering/graph_builder.h"
#include "tests/core/families/made_up/made_up.h"

namespace zeroplan::testing {
namespace {

struct Block {
  Norm norm;
  Linear qkv;
  Attention attention;
  Linear proj;
  Linear up;  // with GELU
  Linear down;
};

class MadeUpGraph : public ModelGraph {
 public:
  explicit MadeUpGraph(GraphBuilder& g) : g_(g), blocks_(static_cast<size_t>(g.model().layers)) {}

  Value Embed() override { return g_.Embedding(kTokens, kPositions, {"residual", 0}); }

  Value Layer(int layer, const Value& x_MC) override {
    Block& b = blocks_[static_cast<size_t>(layer)];
    b.norm = g_.NormForward(x_MC, kNormW, kNormB, "norm");
    b.qkv = g_.LinearForward(b.norm.y_MC, kQkv, kNoParam, "qkv");
    b.attention = g_.AttentionForward(b.qkv.y_MN, "attention");
    b.proj = g_.LinearForward(b.attention.out_MHD, kProj, kNoParam, "middle", x_MC);
    b.up = g_.LinearGeluForward(b.norm.y_MC, kUp, kNoParam, "up", "gelu");
    b.down = g_.LinearForward(b.up.y_MN, kDown, kNoParam, {"residual", layer + 1}, b.proj.y_MN);
    return b.down.y_MN;
  }

  Value Final(const Value& x_MC) override {
    final_ = g_.NormForward(x_MC, kFinalNormW, kFinalNormB, "final_norm");
    return final_.y_MC;
  }

  int head() const override { return kHeadW; }

  Value FinalBackward(const Value& dy_MC) override {
    const Value dresidual_MC = g_.Gradient({"d_residual", -2}, dy_MC.cols);
    g_.NormBackward(final_, dy_MC, dresidual_MC, false);
    return dresidual_MC;
  }

  void LayerBackward(int layer, const Value& dresidual_MC) override {
    const Block& b = blocks_[static_cast<size_t>(layer)];
    const Value dup_MF = g_.LinearBackwardThroughGelu(b.down, b.up, dresidual_MC, "d_up");
    const Value dnorm_MC = g_.LinearBackward(b.up, dup_MF, "d_norm");
    const Value dattention_MC = g_.LinearBackward(b.proj, dresidual_MC, "d_attention");
    const Value dqkv_M3C = g_.AttentionBackward(b.attention, dattention_MC, "d_qkv");
    g_.LinearBackwardAdd(b.qkv, dqkv_M3C, dnorm_MC);
    g_.NormBackward(b.norm, dnorm_MC, dresidual_MC, true);
  }

  void EmbedBackward(const Value& dx_MC) override {
    g_.EmbeddingBackward(kTokens, kPositions, dx_MC);
  }

 private:
  GraphBuilder& g_;
  std::vector<Block> blocks_;
  Norm final_;
};

}  // namespace

std::unique_ptr<ModelGraph> MakeMadeUpGraph(GraphBuilder& builder) {
  return std::make_unique<MadeUpGraph>(builder);
}

}  // namespace zeroplan::testing
