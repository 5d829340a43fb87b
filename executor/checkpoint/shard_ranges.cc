#include "executor/checkpoint/shard_ranges.h"

#include <algorithm>

#include "core/base/error.h"

namespace zeroplan {

std::vector<ShardRange> RankRanges(const ParamLayout& layout, int rank) {
  ZEROPLAN_CHECK(rank >= 0 && static_cast<uint64_t>(rank) < layout.shards, "rank {} of {}", rank,
                 layout.shards);
  std::vector<ShardRange> ranges;
  for (const Unit& unit : layout.units) {
    const uint64_t shard_begin = static_cast<uint64_t>(rank) * unit.shard_elements;
    const uint64_t shard_end = shard_begin + unit.shard_elements;
    for (const TensorSlot& slot : unit.slots) {
      const uint64_t begin = std::max(shard_begin, slot.offset);
      const uint64_t end = std::min(shard_end, slot.offset + slot.elements);
      if (begin < end) ranges.push_back({slot.tensor, begin - slot.offset, end - begin});
    }
  }
  return ranges;
}

}  // namespace zeroplan
