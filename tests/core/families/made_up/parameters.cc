#include "tests/core/families/made_up/made_up.h"

namespace zeroplan::testing {
namespace {

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

}  // namespace

ParamRows MadeUpParams(const ModelSpec& spec) {
  const int64_t c = spec.hidden, f = spec.ffn;
  const float std = spec.init_std;
  ParamRow positions =
      MatrixRow(kPositions, "model.embed_positions.weight", spec.positions, c, std);
  positions.use = ParamUse::kOther;
  // One product in memory, three tensors as published.
  ParamRow qkv = LinearRow(kQkv, "attn.qkv.weight", 3 * c, c, std);
  qkv.parts = {{"attn.q.weight", c}, {"attn.k.weight", c}, {"attn.v.weight", c}};
  return {
      .before = {VocabularyRow(kTokens, "model.embed_tokens.weight", spec, ParamUse::kOther),
                 positions},
      .layer = {VectorRow(kNormW, "norm.weight", c, InitKind::kOnes),
                VectorRow(kNormB, "norm.bias", c, InitKind::kZeros), qkv,
                LinearRow(kProj, "attn.out.weight", c, c, std),
                LinearRow(kUp, "mlp.up.weight", f, c, std),
                LinearRow(kDown, "mlp.down.weight", c, f, std)},
      .after = {VectorRow(kFinalNormW, "model.norm.weight", c, InitKind::kOnes),
                VectorRow(kFinalNormB, "model.norm.bias", c, InitKind::kZeros),
                VocabularyRow(kHeadW, "lm_head.weight", spec, ParamUse::kHead)},
      .layer_prefix = "model.layers.",
  };
}

}  // namespace zeroplan::testing
