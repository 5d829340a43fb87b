// Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) of the linears of a model's layers:
//
//   y = x W + s (x A^T) B^T,   A [r, in], B [out, r],   s = alpha / r
//
// or alpha / sqrt(r) (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732). Adapters are rows of the
// parameter table, after the matrices that they adapt, and all else is frozen. Names, targets and
// initialisation are those of PEFT: an adapter belongs to a published linear. Several published
// linears may be one matrix here (query, key and value). Then the A's of one rank and one scale are
// stacked in one matrix of shape [G r, in], and their B's, of G linears, in one of shape [sum of
// outs, r]. Each other rank or scale has another such pair, with launches of its own.
//
// Dropout p makes an element of A's input x 0 with probability p in training, and multiplies the
// others by 1 / (1 - p); all A's of one matrix read the same values. The dropped elements depend on
// the seed, the number of the sequence in the run, position, column and tensor
// (executor/kernels/dropout.h), and not on how the work is divided.
//
// Rows of the embedding may be trained, too (PEFT's trainable_token_indices). A parameter of n rows
// holds them; wherever the frozen matrix is read, they replace its rows of those n tokens. They are
// initialised from that matrix. A tied head reads the same rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/model/model_spec.h"
#include "core/model/param_table.h"

namespace zeroplan {

// PEFT's name for every linear of a model but its head.
inline constexpr std::string_view kAllLinear = "all-linear";

// Whether `name` matches a module, as PEFT matches names: "layers.3.self_attn.q_proj" is "q_proj".
bool IsNamed(std::string_view module, std::string_view name);

inline bool HasAdapters(const ModelSpec& spec) { return spec.lora_rank > 0; }
// The model without adapters and with nothing frozen: the contents of published weights.
ModelSpec BaseModel(ModelSpec spec);

// Parameter ids of adapter pair number `pair` of the matrix `weight`.
inline constexpr int kLoraIds = 64;
inline int LoraDownId(int weight, int pair = 0) {
  return kLoraIds + 2 * (kLoraIds * pair + weight);
}
inline int LoraUpId(int weight, int pair = 0) { return LoraDownId(weight, pair) + 1; }
inline bool IsAdapter(const ParamRow& row) { return row.id >= kLoraIds; }

// The columns of a matmul's result that adapters add to. The matmul combines at most kMost linears:
// [0, ends[0]), [ends[0], ends[1]), [ends[1], N). Bit i of `mask`: linear i has an adapter.
struct AdaptedColumns {
  static constexpr size_t kMost = 3;
  int64_t ends[2] = {0, 0};
  int64_t mask = 0;

  // An adapted linear.
  struct Part {
    int64_t begin, end;  // its columns
    int64_t place;       // its index among the linears with an adapter, and of its A
    int64_t up_begin;    // its first row of B
    int64_t columns() const { return end - begin; }
  };
  // Calls fn(part) for each adapted linear of a matmul with N columns.
  template <typename Fn>
  void ForEach(int64_t N, Fn&& fn) const {
    const int64_t all_ends[kMost] = {ends[0], ends[1], N};
    int64_t begin = 0, place = 0, up_begin = 0;
    for (size_t i = 0; i < kMost; begin = all_ends[i++]) {
      if ((mask >> i & 1) == 0) continue;
      fn(Part{begin, all_ends[i], place++, up_begin});
      up_begin += all_ends[i] - begin;
    }
  }
};
// The columns of the matmul with `weight` that the pair with the row `adapter` adds to.
AdaptedColumns ColumnsOf(const ParamRow& weight, const ParamRow& adapter);
// A matrix has at most this many adapter pairs.
inline constexpr int kMostPairs = static_cast<int>(AdaptedColumns::kMost);

// The parameter id of the single-token rows of the embedding or head `weight`.
inline int LoraTokensId(int weight) { return LoraDownId(weight, kMostPairs); }
// Suffix of the module's name in their tensor names.
inline constexpr const char* kTokensDelta = ".token_adapter.trainable_tokens_delta";
// The tokens of ModelSpec::lora_tokens, in order, or the layers of dense_layers. Throws
// Error(kUsage) starting with `source` unless `list` is a list of numbers from 0 to vocab - 1, each
// once; messages call a number `one`.
std::vector<int64_t> ReadTokens(std::string_view list, int64_t vocab, std::string_view source,
                                std::string_view one = "token");
std::string WriteTokens(const std::vector<int64_t>& tokens);

// Names, within a layer, of the published linears of a model's layers: "self_attn.q_proj".
std::vector<std::string> LayerLinears(const ModelSpec& spec);

// The adapter of one linear in one layer.
struct LinearAdapter {
  int64_t rank = 0;  // 0: no adapter
  float alpha = 0;
  friend bool operator==(const LinearAdapter&, const LinearAdapter&) = default;
};
// By layer, then in the order of LayerLinears.
using AdapterGrid = std::vector<std::vector<LinearAdapter>>;

// Parses spec.lora_targets: entries NAME[@FIRST[-LAST]][:RANK[/ALPHA]], where NAME is kAllLinear or
// the end of a linear's name, as PEFT matches names, and may include a layer's number
// ("model.layers.3.self_attn.q_proj"). FIRST and LAST are layers, from 0 on; RANK and ALPHA default
// to spec.lora_rank and spec.lora_alpha. If several entries match a linear, the last counts.
// Modules in spec.lora_saved have no adapter. Throws Error(kUsage) starting with `source` for
// entries that are not of this form or match nothing. REQUIRES: HasAdapters.
AdapterGrid ReadTargets(const ModelSpec& spec, std::string_view source);
// The shortest list of such entries for `grid`.
std::string WriteTargets(const ModelSpec& spec, const AdapterGrid& grid);
// Whether all adapted linears have spec's rank and alpha, in all layers.
bool IsEven(const ModelSpec& spec, const AdapterGrid& grid);

// The adapters under PEFT's names: linears, each once, "q_proj"; or "mlp.c_proj" if another linear
// without an adapter has the same ending; or "model.layers.3.mlp.down_proj" if only some layers
// have it; and the ranks and alphas that differ from spec's.
struct AdapterNames {
  std::vector<std::string> modules;
  std::vector<std::pair<std::string, int64_t>> ranks;
  std::vector<std::pair<std::string, float>> alphas;
};
AdapterNames NamesOfAdapters(const ModelSpec& spec);
// "rank 16, alpha 32, on q_proj, v_proj".
std::string DescribeAdapters(const ModelSpec& spec);

// Appends the adapters' rows to those of a layer, and rows of tokens to those around the layers;
// freezes all other parameters that spec.lora_saved does not name. REQUIRES: HasAdapters.
void AddAdapters(const ModelSpec& spec, ParamRows& rows);

// Throws Error(kUsage) starting with `source` for targets that ReadTargets refuses, for an alpha or
// a dropout out of range, for lora_saved modules that do not exist or are parts of one matrix here,
// and for tokens that do not exist or whose rows are trained whole.
void CheckAdapters(const ModelSpec& spec, std::string_view source);

}  // namespace zeroplan
