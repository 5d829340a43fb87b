// Which elements of which tensors a rank's shards hold.
#pragma once

#include <cstdint>
#include <vector>

#include "core/program/layout.h"

namespace zeroplan {

// Elements [begin, begin + count) of a tensor, count > 0.
struct ShardRange {
  int tensor = 0;
  uint64_t begin = 0;
  uint64_t count = 0;
};

// The parts of tensors in the rank's shard of every unit, padding left out; at most one per tensor.
// The ranges of all ranks cover every tensor once. REQUIRES: 0 <= rank < layout.shards.
std::vector<ShardRange> RankRanges(const ParamLayout& layout, int rank);

}  // namespace zeroplan
