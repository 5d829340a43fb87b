// The elements that dropout drops (core/model/lora.h): a function of the seed, the sequence's
// number in the run, position, column and tensor, so that nothing is stored for the backward pass,
// and neither ranks nor micro-batches matter. Host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/kernels/philox.h"

namespace zeroplan {

// An element has 16 random bits. It is kept if they are at least `threshold`, and is then
// multiplied by the inverse of the share that is kept.
struct DropRule {
  uint32_t threshold = 0;
  float scale = 1;
};

// p is rounded to a multiple of 2^-16, below 1.
constexpr DropRule DropRuleOf(float p) {
  constexpr float kAll = 65536;
  const auto below = static_cast<uint32_t>(p * kAll);
  const uint32_t nearest = below + (p * kAll - static_cast<float>(below) >= 0.5f ? 1 : 0);
  const uint32_t threshold = nearest < 65535 ? nearest : 65535;
  return {threshold, kAll / (kAll - static_cast<float>(threshold))};
}

// Columns that share a block of random words.
inline constexpr int64_t kDropColumns = 8;

// The random words of columns kDropColumns * group and on. The last word of the counter is never 0,
// unlike that for fresh weights. Numbers are below 2^44 and tensors below 2^20 - 1.
constexpr PhiloxBlock DropWords(uint64_t seed, uint64_t sequence, uint32_t position,
                                uint32_t tensor, uint32_t group) {
  const auto high = static_cast<uint32_t>(sequence >> 32);
  return Philox4x32({group, position, static_cast<uint32_t>(sequence), (tensor + 1) | (high << 20)},
                    seed);
}

// Whether column `i` of the group is kept.
constexpr bool Keeps(const DropRule& rule, const PhiloxBlock& words, int64_t i) {
  const uint32_t word = words[static_cast<size_t>(i / 2)];
  return (i % 2 == 0 ? word & 0xffff : word >> 16) >= rule.threshold;
}

// The number in the form of a batch.
constexpr uint64_t SequenceNumber(const int32_t* number_2) {
  return static_cast<uint32_t>(number_2[0]) |
         static_cast<uint64_t>(static_cast<uint32_t>(number_2[1])) << 32;
}

}  // namespace zeroplan
