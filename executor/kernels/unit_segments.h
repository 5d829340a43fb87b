// Walks the tensors that a range of a parameter unit covers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/fp8.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// The unit's first element in a kAdamW or kParamInit launch.
inline uint64_t FirstUnitElement(const KernelCall& call, const Unit& unit) {
  const auto begin = static_cast<uint64_t>(call.dims[2]);
  if (!call.has(kOnRank)) return begin;
  return call.context.program->layout.OwnerOf(call.context.rank) * unit.owned_elements() + begin;
}

// Splits [begin, end) of a unit at its tensors' borders and calls fn(slot, begin, end) for each
// piece in order; slot is nullptr for padding.
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

// The unit of a launch on a rank's shard (dims n and unit).
inline const Unit& ShardUnit(const KernelCall& call) {
  return call.context.program->layout.units[static_cast<size_t>(call.dims[1])];
}

// Calls fn(slot, first, count) for each piece of the n elements of a rank's shard, in order; slot
// is that of its tensor in `slots` (core/base/fp8.h), nullptr for padding.
template <typename Fn>
void ForEachShardPiece(const KernelCall& call, const KernelArg& slots, Fn&& fn) {
  const Unit& unit = ShardUnit(call);
  const auto n = static_cast<uint64_t>(call.dims[0]);
  const uint64_t begin =
      static_cast<uint64_t>(call.context.program->axes().Of(call.context.rank).shard) * n;
  ForEachPiece(unit, begin, begin + n, [&](const TensorSlot* tensor, uint64_t from, uint64_t to) {
    char* slot = nullptr;
    if (tensor != nullptr) {
      const auto place = static_cast<uint64_t>(tensor - unit.slots.data());
      slot = slots.as<char>() + place * kFp8SlotBytes;
    }
    fn(slot, static_cast<int64_t>(from - begin), static_cast<int64_t>(to - from));
  });
}

}  // namespace zeroplan
