// A small parameter layout for tests of kernels that walk units: a decayed matrix with padded rows,
// a vector that is not decayed, and a matrix, with alignment gaps between them and padding at the
// end.
#pragma once

#include <memory>

#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {

inline ParamTensor TestTensor(int64_t rows, int64_t cols, bool decay, InitKind init,
                              int64_t unpadded_rows) {
  return {{.name = "t",
           .shape = {rows, cols},
           .is_vector = cols == 1,
           .decay = decay,
           .init = init,
           .init_std = 0.5f,
           .unpadded_rows = unpadded_rows},
          "t",
          0};
}

// One unit over `world_size` shards.
inline ParamLayout TestLayout(uint64_t world_size) {
  ParamLayout layout;
  layout.tensors = std::make_shared<std::vector<ParamTensor>>(std::vector<ParamTensor>{
      TestTensor(40, 33, true, InitKind::kNormal, 37),
      TestTensor(70, 1, false, InitKind::kOnes, 70),
      TestTensor(29, 50, true, InitKind::kNormal, 29),
      TestTensor(130, 1, false, InitKind::kZeros, 130),
  });
  layout.shards = world_size;
  Unit unit{.layer = 0, .persistent = false, .slots = {}};
  for (size_t i = 0; i < layout.tensors->size(); ++i) {
    const uint64_t n = (*layout.tensors)[i].elements();
    const uint64_t offset =
        (unit.elements + kShardAlignElements - 1) / kShardAlignElements * kShardAlignElements;
    unit.slots.push_back({static_cast<int>(i), offset, n});
    unit.elements = offset + n;
    unit.param_elements += n;
  }
  const uint64_t share = (unit.elements + world_size - 1) / world_size;
  unit.shard_elements =
      (share + kShardAlignElements - 1) / kShardAlignElements * kShardAlignElements;
  unit.padded_elements = unit.shard_elements * world_size;
  layout.units.push_back(unit);
  return layout;
}

// The tensor that owns element `i` of a unit, or nullptr, and the index within it.
inline const TensorSlot* SlotAt(const Unit& unit, uint64_t i) {
  for (const TensorSlot& slot : unit.slots) {
    if (i >= slot.offset && i < slot.offset + slot.elements) return &slot;
  }
  return nullptr;
}

}  // namespace zeroplan::kernel_test
