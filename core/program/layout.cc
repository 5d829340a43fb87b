// Tensors to units: one pass over the table, which lists a layer's tensors one after the other.
#include "core/program/layout.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {
namespace {

// Every size derived from an element count stays below 2^64: at most 16 bytes an element, and less
// than 2^31 ranks times kShardAlignElements of padding.
constexpr uint64_t kMaxElements = uint64_t{1} << 59;

uint64_t CheckedElements(const ParamTensor& tensor) {
  ZEROPLAN_CHECK(tensor.shape[0] > 0 && tensor.shape[1] > 0, "{} is empty", tensor.name);
  const uint64_t elements = CheckedMul(static_cast<uint64_t>(tensor.shape[0]),
                                       static_cast<uint64_t>(tensor.shape[1]), tensor.name);
  if (elements > kMaxElements) ThrowUsage("{}: {} elements are too many", tensor.name, elements);
  return elements;
}

void AddTensor(Unit& unit, int tensor, uint64_t elements) {
  const uint64_t offset = AlignUp(unit.elements, unit.align_elements());
  unit.slots.push_back({tensor, offset, elements});
  unit.elements = offset + elements;
  unit.param_elements += elements;
  if (unit.elements > kMaxElements) {
    ThrowUsage("layer {}: {} parameters are too many", unit.layer, unit.elements);
  }
}

// `in_blocks`: collectives send blocks of integers.
uint64_t SliceAlign(const Unit& unit, const ParamLayout& layout, bool in_blocks) {
  if (unit.quantized && layout.shards > 1) return kNf4ShardAlignElements;
  if (unit.in_blocks) return DtypeElements(Dtype::kDynamic8);
  return in_blocks && !unit.persistent ? kSentBlockElements : unit.align_elements();
}

// Closes a unit: shards it and notes where its tensors are.
void AddUnit(ParamLayout& layout, Unit& unit, bool in_blocks) {
  if (unit.slots.empty()) return;
  unit.slices = layout.slices;
  unit.shard_elements = layout.slices * AlignUp(CeilDiv(unit.elements, layout.owners()),
                                                SliceAlign(unit, layout, in_blocks));
  unit.padded_elements = unit.shard_elements * layout.shards;
  const int index = static_cast<int>(layout.units.size());
  for (size_t i = 0; i < unit.slots.size(); ++i) {
    layout.place[static_cast<size_t>(unit.slots[i].tensor)] = {index, static_cast<int>(i)};
  }
  layout.units.push_back(std::move(unit));
}

}  // namespace

uint64_t ParamLayout::param_elements() const {
  uint64_t sum = 0;
  for (const Unit& unit : units) sum += unit.param_elements;
  return sum;
}

uint64_t ParamLayout::persistent_elements() const {
  uint64_t sum = 0;
  for (const Unit& unit : units) sum += unit.persistent ? unit.param_elements : 0;
  return sum;
}

std::map<int, uint64_t> ParamLayout::grad_elements_by_layer() const {
  std::map<int, uint64_t> elements;
  for (const Unit& unit : units) {
    if (unit.trainable) elements[unit.layer] += unit.padded_elements;
  }
  return elements;
}

uint64_t GradShardElements(const TrainSetup& setup, const Unit& unit) {
  return CrossesEachMicroStep(setup) ? unit.owned_elements() : unit.shard_elements;
}

ParamLayout BuildParamLayout(std::shared_ptr<const std::vector<ParamTensor>> tensors,
                             const ZeroConfig& zero, int world_size,
                             const PrecisionConfig& precision) {
  ZEROPLAN_CHECK(tensors != nullptr && world_size >= 1, "world size {}", world_size);
  const std::vector<ParamTensor>& table = *tensors;
  ParamLayout layout;
  layout.states = StateDtypes(precision);
  const bool moments_in_blocks = IsDynamic8(layout.states[1]);
  layout.shards = static_cast<uint64_t>(ShardRanks(zero, world_size));
  if (zero.across_stage > 0) layout.slices = static_cast<uint64_t>(world_size) / layout.shards;
  layout.place.resize(table.size());
  if (!table.empty()) {
    const int64_t layers = int64_t{table.back().layer} - table.front().layer + 1;
    layout.units.reserve(static_cast<size_t>(zero.stage == 3 ? 2 * layers : layers));
  }

  const bool in_blocks = world_size > 1 && (zero.quantized_weights || zero.quantized_gradients);
  // A product takes its matrix and its bias from one unit, or the bias from one that is whole.
  const bool any_quantized = std::any_of(
      table.begin(), table.end(), [](const ParamTensor& tensor) { return tensor.quantized; });
  uint64_t kept = 0;   // elements of persistent tensors so far
  uint64_t total = 0;  // padded elements of all units
  for (size_t i = 0; i < table.size();) {
    const int layer = table[i].layer;
    constexpr size_t kExperts = 4, kQuantized = 6;
    std::array<Unit, kQuantized + 1> parts;  // in order
    for (size_t p = 0; p < kQuantized; ++p) {
      const bool trainable = p % 2 == 0;
      parts[p] = {.layer = layer,
                  .persistent = p < 2,
                  .trainable = trainable,
                  .in_blocks = trainable && moments_in_blocks,
                  .slots = {}};
    }
    parts[kQuantized] = {
        .layer = layer, .persistent = false, .trainable = false, .quantized = true, .slots = {}};
    for (; i < table.size() && table[i].layer == layer; ++i) {
      const uint64_t elements = CheckedElements(table[i]);
      // A tensor that would exceed the model's limit is passed over, and a later, smaller one may
      // still be kept (as DeepSpeed does).
      const bool small = elements <= zero.param_persistence_threshold &&
                         elements <= zero.model_persistence_threshold &&
                         kept <= zero.model_persistence_threshold - elements;
      const bool beside_nf4 = any_quantized && table[i].is_vector && !table[i].trainable;
      const bool keep =
          zero.stage == 3 && !table[i].quantized && !table[i].expert && (small || beside_nf4);
      if (keep) kept += elements;
      const size_t kind = table[i].expert ? kExperts : keep ? 0 : 2;
      const size_t part = table[i].quantized ? kQuantized : kind + (table[i].trainable ? 0 : 1);
      AddTensor(parts[part], static_cast<int>(i), elements);
    }
    const size_t first = layout.units.size();
    for (Unit& part : parts) AddUnit(layout, part, in_blocks);
    for (size_t u = first; u < layout.units.size(); ++u) {
      total = CheckedAdd(total, layout.units[u].padded_elements, "parameters");
    }
    if (total > kMaxElements) ThrowUsage("{} parameters are too many", total);
  }
  layout.tensors = std::move(tensors);
  return layout;
}

}  // namespace zeroplan
