// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): random
// numbers as a function of a key and a counter, so that any rank can draw any element's by itself.
#pragma once

#include <array>
#include <cstdint>

namespace zeroplan {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, uint64_t key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kStep0 = 0x9E3779B9, kStep1 = 0xBB67AE85;  // golden ratio, sqrt(3) - 1
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0], product1 = kMultiplier1 * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kStep0;
    key1 += kStep1;
  }
  return counter;
}

// The four random words of elements 4 * group .. 4 * group + 3 of a tensor.
constexpr PhiloxBlock TensorRandom(uint64_t seed, uint32_t tensor, uint64_t group) {
  return Philox4x32({static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32), tensor, 0},
                    seed);
}

// A number in (0, 1]: never 0, because its logarithm is taken.
constexpr float OpenUniform(uint32_t word) {
  return (static_cast<float>(word >> 8) + 1.0f) * 0x1p-24f;
}

}  // namespace zeroplan
