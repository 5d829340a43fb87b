#include "text/sequences/permutation.h"

#include <bit>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// A Feistel network permutes the power of four that holds `size`; walking on from values past the
// end (at most three in four are) keeps it a bijection of [0, size). Source: Black and Rogaway,
// "Ciphers with arbitrary finite domains", 2002, section 5 (cycle walking). The first rounds of so
// small a network mix little, hence more of them than the four that theory asks for.
constexpr int kRounds = 8;

// The finaliser of splitmix64 (Steele, Lea and Flood, 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t PermutedIndex(uint64_t index, uint64_t size, uint64_t seed, uint64_t epoch) {
  ZEROPLAN_CHECK(index < size, "index {} of {}", index, size);
  if (size == 1) return 0;
  const int half_bits = (static_cast<int>(std::bit_width(size - 1)) + 1) / 2;
  const uint64_t half_mask = (uint64_t{1} << half_bits) - 1;
  const uint64_t key = Mix(Mix(seed) ^ epoch);
  do {
    uint64_t left = index >> half_bits;
    uint64_t right = index & half_mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (Mix(key ^ Mix(right + (uint64_t(round) << 40))) & half_mask);
      left = right;
      right = next;
    }
    index = left << half_bits | right;
  } while (index >= size);
  return index;
}

}  // namespace zeroplan
