// Elementwise sums over ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/dtype.h"

namespace zeroplan {

// Element targets[t][target_begin + i] = sum over r in order of sources[r][source_begin + i], for i
// in [0, count), for each t. Sums are fp32 (fp64 for kF64), rounded once. A target may be the same
// range as a source. REQUIRES: dtype is a floating-point type.
void SumElements(Dtype dtype, std::span<const std::byte* const> sources, uint64_t source_begin,
                 std::span<std::byte* const> targets, uint64_t target_begin, uint64_t count);

}  // namespace zeroplan
