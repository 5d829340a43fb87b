#include <cmath>

#include "core/families/gpt2/gpt2.h"

namespace zeroplan {
namespace {

constexpr InitKind kZeros = InitKind::kZeros, kOnes = InitKind::kOnes;

ParamRow TokenEmbedding(const ModelSpec& spec) {
  ParamRow wte =
      MatrixRow(kWte, "transformer.wte.weight", spec.padded_vocab, spec.hidden, spec.init_std);
  wte.unpadded_rows = spec.vocab;
  wte.use = ParamUse::kHead;
  wte.out_in = true;
  wte.twin = "lm_head.weight";
  return wte;
}

ParamRow PositionEmbedding(const ModelSpec& spec) {
  ParamRow wpe =
      MatrixRow(kWpe, "transformer.wpe.weight", spec.positions, spec.hidden, spec.init_std);
  wpe.use = ParamUse::kOther;
  return wpe;
}

}  // namespace

ParamRows Gpt2Params(const ModelSpec& spec) {
  const int64_t c = spec.hidden, f = spec.ffn;
  const float std = spec.init_std;
  // What writes into the residual stream is scaled, so that its variance does not grow with depth.
  const float residual_std = std / std::sqrt(2.0f * static_cast<float>(spec.layers));
  return {
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
}

}  // namespace zeroplan
