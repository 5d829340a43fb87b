// An fp32 master weight in two halves of 16 bits, one of them the parameter in bf16, so that 4
// bytes hold both. It is lossless: the halves together are the fp32 number, bit for bit.
//
// The upper half is the number rounded to bf16, halves away from zero. The lower half is the
// difference of the bits. With that rounding it fits a signed 16-bit number; with ties to even it
// would not, because 65,537 fp32 numbers round to a bf16 number whose last bit is even. Whole
// masters are rounded to bf16 parameters in the same way, so that both kinds train alike.
#pragma once

#include <bit>
#include <cstdint>

#include "core/base/host_device.h"

namespace zeroplan {

struct SplitMaster {
  uint16_t param = 0;  // bf16
  int16_t rest = 0;
};

// Splits `master`, given as its bits. A NaN becomes the quiet one, whose halves are a NaN and 0.
ZEROPLAN_HOST_DEVICE constexpr SplitMaster SplitBits(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<int16_t>(bits & 0xffffu)};
}
ZEROPLAN_HOST_DEVICE constexpr uint32_t JoinBits(SplitMaster halves) {
  return (static_cast<uint32_t>(halves.param) << 16) +
         static_cast<uint32_t>(static_cast<int32_t>(halves.rest));
}
constexpr SplitMaster Split(float master) { return SplitBits(std::bit_cast<uint32_t>(master)); }
constexpr float Join(SplitMaster halves) { return std::bit_cast<float>(JoinBits(halves)); }

}  // namespace zeroplan
