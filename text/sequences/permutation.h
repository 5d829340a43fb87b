// A pseudo-random order of 0 .. size-1 that needs no memory: computes any element by itself.
#pragma once

#include <cstdint>

namespace zeroplan {

// The place of `index` in the order drawn from (seed, epoch): a bijection of [0, size). REQUIRES:
// index < size. The value for given arguments never changes, because checkpoints rely on it.
uint64_t PermutedIndex(uint64_t index, uint64_t size, uint64_t seed, uint64_t epoch);

}  // namespace zeroplan
