// Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) of the products of a model's layers:
//
//   y = x W + s (x A^T) B^T,   A [r, in], B [out, r],   s = alpha / r
//
// or alpha / sqrt(r) (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732). They are rows of the parameter
// table, behind the matrices that they adapt, and all else is frozen. Names, targets and
// initialisation are those of PEFT: an adapter belongs to a published linear. Where several of
// these are one matrix here (query, key and value), their A's lie below one another in one matrix
// of shape [G r, in], and their B's, of G adapted linears, in one of shape [sum of outs, r].
//
// With dropout p an element of the x that A reads is 0 with probability p in training, else times
// 1 / (1 - p); all A's of one matrix read the same. Which are 0 depends on the seed, the number of
// the sequence in the run, position, column and tensor (executor/kernels/dropout.h): on nothing of
// how the work is cut.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_spec.h"
#include "core/model/param_table.h"

namespace zeroplan {

// PEFT's word for every linear of a model but its head.
inline constexpr std::string_view kAllLinear = "all-linear";

inline bool HasAdapters(const ModelSpec& spec) { return spec.lora_rank > 0; }
// s. REQUIRES: HasAdapters.
float LoraScale(const ModelSpec& spec);
// The model without adapters, nothing frozen: what published weights hold.
ModelSpec BaseModel(ModelSpec spec);

// Parameter ids of the adapter of the product with matrix `weight`.
inline constexpr int kLoraIds = 64;
inline int LoraDownId(int weight) { return kLoraIds + 2 * weight; }
inline int LoraUpId(int weight) { return LoraDownId(weight) + 1; }
inline bool IsAdapter(const ParamRow& row) { return row.id >= kLoraIds; }

// The columns of a product that adapters add to. A product of at most kMost linears: [0, ends[0]),
// [ends[0], ends[1]), [ends[1], N). Bit i of `mask`: linear i has an adapter.
struct AdaptedColumns {
  static constexpr size_t kMost = 3;
  int64_t ends[2] = {0, 0};
  int64_t mask = 0;

  // An adapted linear.
  struct Part {
    int64_t begin, end;  // its columns
    int64_t place;       // among those that have an adapter: which of the A's is its
    int64_t up_begin;    // its first row of B
    int64_t columns() const { return end - begin; }
  };
  // Calls fn(part) for each, of a product with N columns.
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
AdaptedColumns ColumnsOf(const ModelSpec& spec, const ParamRow& weight);

// Names within a layer of the published linears of a model's layers: "self_attn.q_proj".
std::vector<std::string> LayerLinears(const ModelSpec& spec);
// Names of the linears that have adapters, each once: "q_proj", or where another linear without
// one ends so, "mlp.c_proj".
std::vector<std::string> AdaptedModules(const ModelSpec& spec);

// Appends the adapters' rows to those of a layer, and freezes all that spec.lora_saved does not
// name. REQUIRES: HasAdapters.
void AddAdapters(const ModelSpec& spec, ParamRows& rows);

// Throws Error(kUsage) starting with `source` for a target that no linear of a layer has, for a
// rank, an alpha or a dropout out of range, and for lora_saved modules that are none or are parts
// of one matrix here.
void CheckAdapters(const ModelSpec& spec, std::string_view source);

}  // namespace zeroplan
