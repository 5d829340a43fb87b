// The one table of parameter tensors, over which initialisation, sharding, the optimizer,
// checkpoints and the planner iterate. Only a family's own files know which tensors a model has.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zeroplan {

struct ModelSpec;

enum class InitKind : uint8_t { kNormal, kZeros, kOnes, kUniform };

// A token's use of a parameter, by which floating-point operations are counted.
enum class ParamUse : uint8_t {
  kOther,    // looks up a row, adds or scales: embeddings, biases, norms
  kProduct,  // multiplies the token
  kHead,     // multiplies it for the logits; a tied head is the token embedding too
};

// Rows of a parameter that published weights hold as a tensor of its own. They are one matrix in
// memory, for one matmul: "self_attn.q_proj.weight" above those of the keys and the values.
struct ParamPart {
  const char* name = "";  // static string, as ParamRow::name
  int64_t rows = 0;
};

// One parameter of a family's table, without the layer that it belongs to.
struct ParamRow {
  int id = 0;             // the family's own number, from 0 on
  const char* name = "";  // static string; within a layer: "ln_1.weight"
  // Rows, cols; vectors are {n, 1}. Same in memory and in published weights.
  std::array<int64_t, 2> shape = {1, 1};
  bool is_vector = false;
  bool decay = false;  // weight decay applies: to matrices and embeddings, not to biases and norms
  InitKind init = InitKind::kNormal;
  float init_std = 0;         // for kNormal; for kUniform the bound: [-init_std, init_std)
  int64_t unpadded_rows = 1;  // rows in exports (of a vocabulary: V), else shape[0]
  ParamUse use = ParamUse::kOther;
  // The share of tokens that it multiplies: below 1 for an expert's matrices.
  double token_share = 1;
  // It holds a matrix of each expert, one below the other. The experts of a layer are a unit of
  // their own.
  bool expert = false;
  // Its name where transformers 5 saves all experts as one tensor [E, rows, cols], with the same
  // bytes ("mlp.experts.down_proj"); empty: it has none.
  const char* fused = "";
  // False: PEFT makes no adapter of it by its module's name, since that is no torch.nn.Linear, or
  // adapters of it are not modelled.
  bool adaptable = true;
  // False: it stays as it is loaded or initialised. It has no gradient, master or optimizer states.
  // Parameters of one kernel are trained together: a linear's weight and bias, a norm's.
  bool trainable = true;
  // False: it belongs to the base that adapters are trained on; checkpoints leave it to the base's
  // own files.
  bool saved = true;
  // It is stored in NF4 (core/base/nf4.h), and each matmul uses a copy in the compute dtype. Only
  // for parameters that are neither trained nor saved.
  bool quantized = false;
  // The layout of a matrix that multiplies tokens is [out, in], as in torch.nn.Linear, and not [in,
  // out], as in GPT-2's Conv1D.
  bool out_in = false;
  // A second name under which published weights may hold the same values ("lm_head.weight" of a
  // tied head); empty: none.
  const char* twin = "";
  // The published tensors that are its parts, from the first row down, which add up to all rows;
  // empty: published as it is, under `name`.
  std::vector<ParamPart> parts = {};
  // For an adapter's A and B (core/model/lora.h): bit i is set if they adapt linear i of the
  // matrix. Their result is scaled by lora_scale.
  int64_t lora_linears = 0;
  float lora_scale = 0;
  // The tokens whose rows of the embedding or the head it holds, in order; zeros follow to its end.
  std::vector<int64_t> tokens = {};

  uint64_t elements() const {
    return static_cast<uint64_t>(shape[0]) * static_cast<uint64_t>(shape[1]);
  }
};

// A bias or norm of `size` elements.
ParamRow VectorRow(int id, const char* name, int64_t size, InitKind init);
// A matrix that multiplies tokens, [in, out].
ParamRow MatrixRow(int id, const char* name, int64_t rows, int64_t cols, float init_std);

// A family's table for one model, in forward order. All layers have the rows of `layer`.
struct ParamRows {
  std::vector<ParamRow> before, layer, after;
  // By layer, additional rows, for adapters that differ between layers. Empty: none.
  std::vector<std::vector<ParamRow>> own = {};
  // "transformer.h.": names within a layer follow it, the layer's number and a dot.
  const char* layer_prefix = "";
};

// The layer number of tensors outside the layers: embeddings come before layer 0; the tensors after
// the last layer (final norm, an untied head) have number spec.layers.
inline constexpr int kEmbeddingLayer = -1;

struct ParamTensor : ParamRow {
  std::string name;  // Hugging Face's, in full: "transformer.h.0.attn.c_attn.weight"
  int layer = 0;     // kEmbeddingLayer, 0 .. layers-1, or layers for tensors after them
};

// A tensor as published weights name it: rows [begin, end) of a parameter, without padding.
struct PublishedTensor {
  std::string name;
  int64_t begin = 0, end = 0;
};
// The tensor's parts in order, else the tensor itself.
std::vector<PublishedTensor> PublishedTensors(const ParamTensor& tensor);

// `name`, of the same layer as the tensor: with its layer's prefix.
std::string NameInLayer(const ParamTensor& tensor, std::string_view name);

// The linear, norm or embedding of a tensor: "transformer.h.0.ln_1" of
// "transformer.h.0.ln_1.weight".
std::string_view ModuleOf(std::string_view tensor);
// Throws Error(kUsage) starting with `source` if among the tensors of one kernel some are trained
// and some are not. `verb` is the advice for all or none of them: "freeze".
void CheckTrainedTogether(const std::vector<ParamTensor>& table, std::string_view source,
                          std::string_view verb);

// The rows of spec.family, with those of adapters (core/model/lora.h).
ParamRows RowsOf(const ModelSpec& spec);

// The tensors, layer by layer. Tensors that spec.frozen names are not trainable.
std::vector<ParamTensor> BuildParamTable(const ModelSpec& spec);

}  // namespace zeroplan
