// Stochastic rounding to 16 bits: up or down, with the probability that makes the mean equal the
// number. An element's rounding is a function of the run's seed, the tensor, the step and the
// element's place in the tensor, so it is the same on any number of ranks, at any stage, on any
// backend, and after a resume.
#pragma once

#include <bit>
#include <cstdint>

#include "core/base/host_device.h"

namespace zeroplan {

// splitmix64's finalizer: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// OOPSLA 2014.
ZEROPLAN_HOST_DEVICE constexpr uint64_t MixRounding(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// `step`: StepState::step of the running step. The key is a pair of 32-bit keys.
ZEROPLAN_HOST_DEVICE constexpr uint64_t RoundingKey(uint64_t seed, uint32_t tensor, int64_t step) {
  return MixRounding(MixRounding(MixRounding(seed) + tensor) + static_cast<uint64_t>(step));
}

// The random word of an element: its lower 16 bits round the master weight, its upper 16 the second
// moment. A 32-bit hash with two multiplications (Wellons, "lowbias32") of the element and the key.
//
// In place: elements, uint32_t or a vector of them, become words.
template <typename Word>
[[gnu::always_inline]] ZEROPLAN_HOST_DEVICE constexpr void ToRoundingWords(uint64_t key, Word& x) {
  x = x * 0x9e3779b9u + static_cast<uint32_t>(key);
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15) ^ static_cast<uint32_t>(key >> 32)) * 0x846ca68bu;
  x = x ^ (x >> 16);
}
ZEROPLAN_HOST_DEVICE constexpr uint32_t RoundingWord(uint64_t key, uint32_t element) {
  ToRoundingWords(key, element);
  return element;
}

// The bits of an fp32 number rounded to bf16, by 16 random bits. Infinity stays infinity; NaN
// becomes the quiet one, as in core/base/split_master.h.
ZEROPLAN_HOST_DEVICE constexpr uint16_t RoundedBf16(uint32_t bits, uint32_t random16) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
  return static_cast<uint16_t>((bits + random16) >> 16);
}

// The same to fp16. Larger numbers become its largest; below 2^-14 numbers are multiples of 2^-24.
ZEROPLAN_HOST_DEVICE constexpr float RoundedF16(float x, uint32_t random16) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits & 0x80000000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return x;
  if (magnitude >= 0x38800000u) {
    magnitude = (magnitude + (random16 >> 3)) & ~0x1fffu;
    if (magnitude > 0x477fe000u) magnitude = 0x477fe000u;  // 65504
    return std::bit_cast<float>(sign | magnitude);
  }
  const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
  const auto whole = static_cast<uint32_t>(units + static_cast<float>(random16) * 0x1p-16f);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(whole) * 0x1p-24f));
}

}  // namespace zeroplan
