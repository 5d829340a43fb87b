#include "core/families/llama/llama.h"

namespace zeroplan {
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
