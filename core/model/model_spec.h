// The shape of a GPT-2 style transformer: what is trained, apart from how (config) and where
// (hardware).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

// A decoder-only GPT-2: learned positions, pre-layer-norm, GELU (tanh form), tied output head.
// Source of the architecture: Radford et al. 2019; names as in Hugging Face's GPT2Config.
struct ModelSpec {
  std::string name;
  int64_t layers = 0;        // n_layer
  int64_t hidden = 0;        // n_embd, C
  int64_t heads = 0;         // n_head, divides hidden
  int64_t ffn = 0;           // n_inner, 4*hidden unless a config says otherwise
  int64_t vocab = 0;         // real tokens, V; logits at and past V are masked
  int64_t padded_vocab = 0;  // rows of wte in memory, Vp >= V, a multiple of 128 when V > 256
  int64_t positions = 0;     // rows of wpe; the longest sequence
  float layer_norm_eps = 1e-5f;
  float init_std = 0.02f;  // projections into the residual stream use init_std / sqrt(2*layers)

  // Parameters with the padded vocabulary, tied head counted once (what memory holds).
  uint64_t ParamCount() const;
  // The same with the real vocabulary (what exports and papers count).
  uint64_t UnpaddedParamCount() const;
};

// Throws Error(kUsage) if a dimension is non-positive, heads do not divide hidden, vocab is more
// than padded_vocab, or the parameter count does not fit 2^62. `source` is named in the message.
void ValidateModelSpec(const ModelSpec& spec, std::string_view source);

// 50257 -> 50304: the next multiple of 128, but byte vocabularies (<= 256) stay as they are.
int64_t PadVocab(int64_t vocab);

struct ModelPreset {
  ModelSpec spec;
  std::string source;  // where the shape comes from
};
// gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-1.3b, gpt3-2.7b, gpt3-6.7b, gpt3-13b, gpt2-10b.
const std::vector<ModelPreset>& ModelPresets();

// A preset name, a Hugging Face config.json, or a folder that holds one. Throws Error(kUsage)
// naming the nearest preset, or the file, key and value.
ModelSpec LoadModel(const std::string& name_or_path);
// Reads one Hugging Face GPT-2 config.json (model_type gpt2). `*notes` collects one line for each
// setting that is not trained with (dropout). Unsupported settings are errors (activation_function
// other than gelu_new, tie_word_embeddings false, scale_attn_by_inverse_layer_idx, ...).
ModelSpec ReadHuggingFaceConfig(const std::filesystem::path& file, std::vector<std::string>* notes);
// The config.json that transformers reads back, as text. Vocabulary unpadded.
std::string WriteHuggingFaceConfig(const ModelSpec& spec);

// A GPT-2 shape with about `params` parameters, `seq_len` positions: the preset within 3 % if there
// is one (10B is 50 x 4096), else the best found (heads of 64 or 128, hidden a multiple of 128,
// depth to width as the GPT-3 paper's table 2.1 has it). Below 20M: 256 byte-level tokens, hidden a
// multiple of
// 16. Throws Error(kUsage) outside [1e5, 1e15], and where that many positions leave no room.
ModelSpec ModelFromParams(uint64_t params, int64_t seq_len);

}  // namespace zeroplan
