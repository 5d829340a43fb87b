// Numbers as 8-bit or 4-bit integers with one fp32 scale for 256 of them: the values that quantized
// collectives send (ZeRO++, Wang et al. 2023, arXiv 2306.10209, sections 4.1 and 4.3).
//
// A number x becomes round(x / scale) * scale, ties to even; scale is the largest magnitude of the
// 256 divided by the largest integer, 127 or 7. So the error is at most half a scale. The least
// scale is the smallest normal number. If one of the 256 is not finite, the scale is infinite and
// all codes are 0: reading gives NaN for all of them. Four groups of 256 form a block, which is
// stored and sent by itself.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"

namespace zeroplan {

inline constexpr int kIntGroup = 256;  // elements that share a scale
inline constexpr int kIntGroups = 4;   // groups of a block
inline constexpr int kIntBlock = kIntGroup * kIntGroups;
inline constexpr uint32_t kLeastIntScaleBits = 0x00800000;  // 2^-126
inline constexpr uint32_t kInfinityBits = 0x7f800000;

struct alignas(16) Int8Block {
  static constexpr Dtype kDtype = Dtype::kInt8Blocks;
  static constexpr int kLargest = 127;
  int8_t codes[kIntGroups][kIntGroup];
  float scales[kIntGroups];
};

struct alignas(16) Int4Block {
  static constexpr Dtype kDtype = Dtype::kInt4Blocks;
  static constexpr int kLargest = 7;
  // Byte i of a group has element i in its lower four bits and element i + 128 in its upper four.
  uint8_t codes[kIntGroups][kIntGroup / 2];
  float scales[kIntGroups];
};

static_assert(sizeof(Int8Block) == DtypeBytes(Dtype::kInt8Blocks));
static_assert(sizeof(Int4Block) == DtypeBytes(Dtype::kInt4Blocks));
static_assert(kIntBlock == DtypeElements(Dtype::kInt8Blocks));
static_assert(kIntBlock == DtypeElements(Dtype::kInt4Blocks));

constexpr bool IsIntBlocks(Dtype dtype) {
  return dtype == Dtype::kInt8Blocks || dtype == Dtype::kInt4Blocks;
}

}  // namespace zeroplan
