#include "core/program/bucket_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/model/param_table.h"

namespace zeroplan {

uint64_t ReduceBucketElements(const ZeroConfig& zero, const ParamLayout& layout, int64_t layers) {
  if (zero.reduce_bucket_elements != kAuto) return zero.reduce_bucket_elements;
  // Whole layers, at stage 3 their persistent units too: of two buckets at a time, one is then the
  // layer being reduced and one the layer being filled.
  uint64_t largest = kLeastAutoBucket;
  for (const auto& [layer, elements] : layout.grad_elements_by_layer()) {
    const bool in_layer = layer >= 0 && layer < layers;
    if (in_layer) largest = std::max(largest, elements);
  }
  return largest;
}

uint64_t GatherBucketElements(const ZeroConfig& zero, uint64_t reduce_bucket) {
  const uint64_t asked = zero.allgather_bucket_elements;
  // Where gathers run beside the next forward pass, its first layers should not wait for the rest.
  const bool chosen = asked != ZeroConfig{}.allgather_bucket_elements;
  return zero.overlap_comm && !chosen ? std::min(asked, reduce_bucket) : asked;
}

uint64_t LiveParameterLimit(const ZeroConfig& zero, const ParamLayout& layout) {
  if (zero.max_live_parameters != kAuto) return zero.max_live_parameters;
  uint64_t largest = 0;
  for (const Unit& unit : layout.units) {
    if (!unit.persistent) largest = std::max(largest, unit.param_elements);
  }
  const uint64_t ahead = zero.prefetch_bucket_elements == kAuto ? 0 : zero.prefetch_bucket_elements;
  return std::max(kLeastAutoLive, 2 * largest + ahead);
}

std::string LiveLimitWarning(const TrainSetup& setup, const ParamLayout& layout, int64_t layers) {
  const ZeroConfig& zero = setup.zero;
  const bool gathers = zero.stage == 3 && (setup.batch.world_size > 1 ||
                                           zero.offload_param.device != OffloadDevice::kNone);
  if (!gathers) return "";
  std::map<int, uint64_t> gathered;  // of each layer
  for (const Unit& unit : layout.units) {
    const bool in_layer = unit.layer >= 0 && unit.layer < layers;
    if (in_layer && !unit.persistent) gathered[unit.layer] += unit.param_elements;
  }
  uint64_t pair = 0, before = 0;
  for (const auto& [layer, elements] : gathered) {
    if (before > 0) pair = std::max(pair, before + elements);
    before = elements;
  }
  const uint64_t limit = LiveParameterLimit(zero, layout);
  if (pair <= limit) return "";
  ZeroConfig open = zero;
  open.max_live_parameters = kAuto;
  return fmt::format(
      "zero_optimization.stage3_max_live_parameters: {} is less than two layers of this model "
      "({} parameters): each layer is gathered only when the one before it is done, and is waited "
      "for; use {} or more",
      limit, pair, std::max(pair, LiveParameterLimit(open, layout)));
}

std::string LiveLimitWarning(const TrainSetup& setup, const ModelSpec& model) {
  const auto tensors = std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(model));
  return LiveLimitWarning(
      setup, BuildParamLayout(tensors, setup.zero, setup.batch.world_size, setup.precision),
      model.layers);
}

uint64_t SubGroupElements(uint64_t params, int ranks) {
  const uint64_t share = CeilDiv(params, static_cast<uint64_t>(ranks));
  return std::max(ZeroConfig{}.sub_group_elements, CeilDiv(share, kMostStatePieces / 2));
}

void CheckSubGroups(const TrainSetup& setup, const ModelSpec& model, std::string_view source) {
  const ZeroConfig& zero = setup.zero;
  if (zero.offload_optimizer.device == OffloadDevice::kNone) return;
  const uint64_t ranks = zero.stage == 0 ? 1 : static_cast<uint64_t>(setup.batch.world_size);
  const auto share = static_cast<uint64_t>(zero.offload_optimizer.ratio *
                                           static_cast<double>(CeilDiv(model.ParamCount(), ranks)));
  const uint64_t pieces = CeilDiv(share, zero.sub_group_elements);
  if (pieces <= kMostStatePieces) return;
  ThrowUsage(
      "{}: zero_optimization.sub_group_size: {} is not allowed: it cuts the {} offloaded elements "
      "of a rank into {} pieces, and a step has at most {}; use {} or more",
      source, zero.sub_group_elements, share, pieces, kMostStatePieces,
      CeilDiv(share, kMostStatePieces));
}

uint64_t ReduceBucketElements(const Program& program) {
  return ReduceBucketElements(program.setup.zero, program.layout, program.model.layers);
}

uint64_t GatherBucketElements(const Program& program) {
  return GatherBucketElements(program.setup.zero, ReduceBucketElements(program));
}

}  // namespace zeroplan
