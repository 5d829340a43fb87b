// Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) of the products of a model's layers:
//
//   y = x W + s (x A^T) B^T,   A [r, in], B [out, r],   s = alpha / r
//
// or alpha / sqrt(r) (rsLoRA, Kalajdzievski 2023, arXiv 2312.03732). They are rows of the parameter
// table, behind the matrices that they adapt, and all else is frozen. Names, targets and
// initialisation are those of PEFT: an adapter belongs to a published linear. Where several of
// these are one matrix here (query, key and value), their A's lie below one another in one matrix
// of shape [G r, in], and their B's, of G adapted linears, in one of shape [sum of outs, r].
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

  int64_t begin(size_t part) const { return part == 0 ? 0 : ends[part - 1]; }
  int64_t end(size_t part, int64_t N) const { return part < 2 ? ends[part] : N; }
  bool has(size_t part) const { return (mask >> part & 1) != 0; }
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
// rank or an alpha out of range, and for lora_saved modules that are none or are parts of one
// matrix here.
void CheckAdapters(const ModelSpec& spec, std::string_view source);

}  // namespace zeroplan
