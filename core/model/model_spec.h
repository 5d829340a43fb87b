// The shape of a transformer: what is trained, apart from how (config) and where (hardware).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace zeroplan {

class ModelFamily;

// The dimensions that decoder-only transformers share. What a family makes of them (its tensors,
// its graph, its config.json) is in core/families. The list of these fields for files, messages and
// fingerprints: model_fields.h.
struct ModelSpec {
  std::string name;
  const ModelFamily* family = nullptr;  // not null in a model that was read, derived or preset
  int64_t layers = 0;
  int64_t hidden = 0;  // width of the residual stream, C
  int64_t heads = 0;   // of queries
  int64_t ffn = 0;     // width of the MLP
  int64_t vocab = 0;   // real tokens, V; logits at and past V are masked
  int64_t padded_vocab =
      0;                  // rows of vocabulary in memory, Vp >= V, a multiple of 128 when V > 256
  int64_t positions = 0;  // the longest sequence
  float layer_norm_eps = 1e-5f;
  float init_std = 0.02f;

  // Heads of keys and values; several query heads in a row share one.
  int64_t KvHeads() const { return heads; }
  int64_t HeadSize() const { return hidden / heads; }

  // Parameters with the padded vocabulary, a tied head counted once (what memory holds).
  uint64_t ParamCount() const;
  // The same with the real vocabulary (what exports and papers count).
  uint64_t UnpaddedParamCount() const;
};

// Throws Error(kUsage) if a dimension is non-positive or too large, heads do not divide hidden,
// vocab is more than padded_vocab, or the parameter count does not fit 2^62. Messages name `source`
// and the family's own key ("n_layer").
void ValidateModelSpec(const ModelSpec& spec, std::string_view source);

// 50257 -> 50304: the next multiple of 128, but byte vocabularies (<= 256) stay as they are.
int64_t PadVocab(int64_t vocab);

}  // namespace zeroplan
