// Walks the tensors that a range of a parameter unit covers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// The first element of the unit that a kAdamW or kParamInit launch works on.
inline uint64_t FirstUnitElement(const KernelCall& call, const Unit& unit) {
  const auto begin = static_cast<uint64_t>(call.dims[2]);
  if (!call.has(kOnRank)) return begin;
  return call.context.program->layout.OwnerOf(call.context.rank) * unit.owned_elements() + begin;
}

// Cuts [begin, end) of a unit at its tensors' borders and calls fn(slot, begin, end) for each piece
// in order; slot is nullptr for padding.
template <typename Fn>
void ForEachPiece(const Unit& unit, uint64_t begin, uint64_t end, Fn&& fn) {
  auto slot = std::upper_bound(
      unit.slots.begin(), unit.slots.end(), begin,
      [](uint64_t position, const TensorSlot& s) { return position < s.offset + s.elements; });
  for (; begin < end && slot != unit.slots.end(); ++slot) {
    if (begin < slot->offset) {
      const uint64_t stop = std::min(end, slot->offset);
      fn(static_cast<const TensorSlot*>(nullptr), begin, stop);
      begin = stop;
    }
    const uint64_t stop = std::min(end, slot->offset + slot->elements);
    if (begin < stop) fn(&*slot, begin, stop);
    begin = std::max(begin, stop);
  }
  if (begin < end) fn(static_cast<const TensorSlot*>(nullptr), begin, end);
}

}  // namespace zeroplan
