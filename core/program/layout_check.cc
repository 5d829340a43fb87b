// That units hold every tensor once and shards cover the units.
#include <fmt/format.h>

#include "core/program/static_check.h"

namespace zeroplan {
namespace {

// What is wrong with a unit, or "".
std::string UnitFault(const ParamLayout& layout, size_t index) {
  const Unit& unit = layout.units[index];
  if (unit.shard_elements * layout.shards != unit.padded_elements ||
      unit.padded_elements < unit.elements) {
    return fmt::format("{} shards of {} elements do not cover its {} elements, padded {}",
                       layout.shards, unit.shard_elements, unit.elements, unit.padded_elements);
  }
  if (unit.shard_elements % kShardAlignElements != 0) {
    return fmt::format("shards of {} elements are not aligned", unit.shard_elements);
  }
  uint64_t end = 0, sum = 0;
  for (size_t s = 0; s < unit.slots.size(); ++s) {
    const TensorSlot& slot = unit.slots[s];
    if (slot.tensor < 0 || static_cast<size_t>(slot.tensor) >= layout.place.size()) {
      return fmt::format("slot {} holds no tensor of the table", s);
    }
    if (slot.offset < end || slot.offset % kShardAlignElements != 0) {
      return fmt::format("slot {} at {} overlaps the one before or is not aligned", s, slot.offset);
    }
    const ParamLayout::Place& place = layout.place[static_cast<size_t>(slot.tensor)];
    if (place.unit != static_cast<int>(index) || place.slot != static_cast<int>(s)) {
      return fmt::format("tensor {} is also said to lie in unit {} slot {}", slot.tensor,
                         place.unit, place.slot);
    }
    end = slot.offset + slot.elements;
    sum += slot.elements;
  }
  if (end != unit.elements || sum != unit.param_elements) {
    return fmt::format("its tensors end at {} and have {} elements, not {} and {}", end, sum,
                       unit.elements, unit.param_elements);
  }
  return "";
}

}  // namespace

void CheckLayout(const Program& program, Violations& violations) {
  const ParamLayout& layout = program.layout;
  size_t slots = 0;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    slots += layout.units[u].slots.size();
    const std::string fault = UnitFault(layout, u);
    if (!fault.empty()) violations.Add("shard_cover", {}, fmt::format("unit {}: {}", u, fault));
  }
  if (slots != layout.place.size()) {
    violations.Add("shard_cover", {},
                   fmt::format("units hold {} tensors of {}", slots, layout.place.size()));
  }
}

}  // namespace zeroplan
