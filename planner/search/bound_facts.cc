#include "planner/search/bound_facts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/program/bucket_sizes.h"
#include "core/settings/setup_facts.h"
#include "cost_models/closed_form.h"

namespace zeroplan {
namespace {

using Shapes = std::vector<std::array<int64_t, 3>>;

bool SameLayers(const std::vector<ParamTensor>& tensors, int64_t layers) {
  std::map<int64_t, Shapes> shapes;
  for (const ParamTensor& tensor : tensors) {
    if (tensor.layer < 0 || tensor.layer >= layers) continue;
    shapes[tensor.layer].push_back({tensor.shape[0], tensor.shape[1], tensor.trainable});
  }
  if (static_cast<int64_t>(shapes.size()) != layers) return false;
  return std::all_of(shapes.begin(), shapes.end(),
                     [&](const auto& layer) { return layer.second == shapes.begin()->second; });
}

}  // namespace

BoundAssumptions AssumptionsOf(const std::vector<ParamTensor>& tensors, int64_t layers) {
  BoundAssumptions assumed;
  assumed.uniform_layers = SameLayers(tensors, layers);
  int heads = 0;
  for (const ParamTensor& tensor : tensors) {
    if (tensor.use != ParamUse::kHead) continue;
    ++heads;
    if (tensor.layer != kEmbeddingLayer || !tensor.trainable) continue;
    assumed.tied_head_elements = static_cast<double>(tensor.elements());
  }
  if (heads != 1) assumed.tied_head_elements = 0;
  return assumed;
}

LayoutFacts FactsOf(const ParamLayout& layout, int64_t layers, const BoundAssumptions& assumed,
                    Dtype compute) {
  LayoutFacts facts;
  facts.assumed = assumed;
  facts.persistent = static_cast<double>(layout.persistent_elements());
  std::map<int, double> of_layer, trained_of_layer, gathered_of_layer;
  std::set<int> gathered_layers;  // layers with a trained unit so far
  for (const Unit& unit : layout.units) {
    const double elements =
        static_cast<double>(StoredBytes(unit.ParamDtype(compute), unit.param_elements)) /
        static_cast<double>(DtypeBytes(compute));
    facts.all += elements;
    const double gathered = unit.persistent ? 0 : elements;
    const bool own_head = assumed.tied_head_elements <= 0;
    const bool in_layers = unit.layer >= 0 && unit.layer < layers;
    if (unit.trainable) (in_layers ? facts.trained_layers : facts.trained) += elements;
    if (own_head && !in_layers) facts.gathered_once += gathered;
    if (unit.layer == kEmbeddingLayer) {
      facts.embedding += elements;
      facts.embedding_gather += gathered;
    } else if (in_layers) {
      of_layer[unit.layer] += elements;
      if (unit.trainable) trained_of_layer[unit.layer] += elements;
      const bool second =
          unit.trainable && gathered > 0 && !gathered_layers.insert(unit.layer).second;
      facts.split_layers = facts.split_layers || second;
      gathered_of_layer[unit.layer] += gathered;
      facts.largest_unit = std::max(facts.largest_unit, gathered);
      for (const TensorSlot& slot : unit.slots) {
        facts.largest_tensor = std::max(facts.largest_tensor, static_cast<double>(slot.elements));
      }
    } else if (own_head) {
      facts.own_head += elements;
    }
  }
  facts.trained += facts.trained_layers;
  for (const auto& [layer, elements] : of_layer) {
    facts.layers += elements;
    facts.largest_layer = std::max(facts.largest_layer, elements);
  }
  for (const auto& [layer, elements] : trained_of_layer) {
    facts.largest_trained_layer = std::max(facts.largest_trained_layer, elements);
  }
  std::map<double, double> by_size;
  for (const auto& [layer, elements] : gathered_of_layer) {
    if (elements > 0) by_size[elements] += 1;
  }
  for (const auto& [elements, count] : by_size) facts.layer_gathers.push_back({elements, count});
  ZeroConfig open;
  open.reduce_bucket_elements = kAuto;
  facts.auto_reduce_bucket = ReduceBucketElements(open, layout, layers);
  // Layers lie no closer than their elements.
  facts.auto_reduce_layers = std::floor(static_cast<double>(facts.auto_reduce_bucket) /
                                        std::max(1.0, facts.largest_trained_layer));
  return facts;
}

GroupTerms::GroupTerms(const TrainSetup& setup, const LayoutFacts& facts) {
  const StateBytesPerParam bytes = StateBytes(setup.precision);
  ranks = setup.batch.world_size;
  stage = setup.zero.stage;
  TrainSetup batch = setup;
  batch.batch.grad_accum = 2;
  crosses_each = CrossesEachMicroStep(batch);
  batch.batch.grad_accum = 1;
  groups = ShardGroupsOf(batch);
  psi = facts.all;
  trained = facts.trained;
  sharded = ParamsSharded(setup);
  whole = sharded ? facts.persistent : 0;
  reused = setup.zero.max_reuse_distance > 0 ? psi - whole : 0;
  const bool all_may_live = setup.zero.max_live_parameters != kAuto &&
                            static_cast<double>(setup.zero.max_live_parameters) >= psi;
  if (sharded && all_may_live && all_trained()) {
    // Between a layer's two uses lie the layers above it: in both passes, those of a segment of
    // several once more to recompute them.
    const double passes = setup.recompute.every > 1 ? 3 : 2;
    const double room =
        static_cast<double>(setup.zero.max_reuse_distance) - 2 * (psi - facts.layers);
    kept = std::clamp(room / passes, 0.0, facts.gathered_layers());
  }
  away = setup.zero.offload_optimizer.device == OffloadDevice::kNone
             ? 0
             : setup.zero.offload_optimizer.ratio;
  param_bytes = static_cast<double>(bytes.params);
  grad_bytes = static_cast<double>(bytes.grads);
  const auto bytes_of = [](Dtype dtype) { return static_cast<double>(DtypeBytes(dtype)); };
  written_grad_bytes = bytes_of(FullGradDtype(setup));
  sent_grad_bytes = bytes_of(SentGradDtype(setup));
  host_grad_bytes = bytes_of(HostGradDtype(setup));
  params_away = setup.zero.offload_param.device != OffloadDevice::kNone;
  const bool in_files = setup.zero.offload_optimizer.device == OffloadDevice::kNvme;
  state_bytes = StateBytes(setup.precision, params_away && !in_files).optimizer;
  in_place = GradsInPlace(setup);
  const ZeroConfig& zero = setup.zero;
  grads_in_blocks = zero.quantized_gradients;
  const Fp8Config& fp8 = setup.precision.fp8;
  gathers_fp8 = fp8.enabled && fp8.recipe == Fp8Recipe::kTensor && sharded && !params_away &&
                !zero.quantized_weights && groups.shards > 1;
  gathered_bytes = gathers_fp8 ? bytes_of(Dtype::kE4M3) : param_bytes;
  const bool in_blocks = zero.quantized_weights || zero.quantized_gradients;
  shard_align = static_cast<double>(in_blocks || IsDynamic8(setup.precision.moment_dtype)
                                        ? DtypeElements(Dtype::kInt8Blocks)
                                        : kShardAlignElements);
}

}  // namespace zeroplan
