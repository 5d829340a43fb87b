// Adam's moments with eight bits an element: the dynamic map of 8-bit optimizers (Dettmers et al.
// 2022, "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861, section 2.1), with the
// codes of bitsandbytes' create_dynamic_map, in blocks of 256 elements with an fp32 scale.
//
// The codes represent 0, 1 and numbers of seven decades, 10^-7 to 1. Decade d = 0..6 has n = 2^d
// numbers (twice as many in the map without a sign): 10^(d-6) * (0.1 + 0.9 * (j + 1/2) / n), j < n,
// to within 1e-6 of each. Codes are numbered in order of their value: negative ones, 0, positive
// ones, 1.
//
// A number equals its code's value times its group's scale. The scale is the group's number with
// the largest magnitude, the positive one of two. So that number is stored exactly, while
// bitsandbytes' scale has no sign and a negative one is off by 0.7 %; and a group that is read and
// quantized again has the same codes and the same scale.
//
// Four groups of 256 form a block, which is stored by itself.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/host_device.h"

namespace zeroplan {

inline constexpr int kDynamic8Group = 256;  // elements that share a scale
inline constexpr int kDynamic8Groups = 4;   // groups of a block
inline constexpr int kDynamic8Decades = 7;

struct alignas(16) Dynamic8Block {
  uint8_t codes[kDynamic8Groups][kDynamic8Group];
  float scales[kDynamic8Groups];
};
static_assert(sizeof(Dynamic8Block) == DtypeBytes(Dtype::kDynamic8));
static_assert(sizeof(Dynamic8Block) == DtypeBytes(Dtype::kUnsignedDynamic8));
static_assert(kDynamic8Group * kDynamic8Groups == DtypeElements(Dtype::kDynamic8));

constexpr bool IsDynamic8(Dtype dtype) {
  return dtype == Dtype::kDynamic8 || dtype == Dtype::kUnsignedDynamic8;
}

// One of the two maps, in steps of fp32 arithmetic, each rounded by itself. Every backend uses
// these steps, or steps with the same results. A number's place counts from 0: 0 is 0, the largest
// is 1.
//
// Entry 7 of the arrays by decade is for 1.
struct Dynamic8Map {
  // The place of a magnitude a in decade d is the whole part of min(a * factor - offset, last).
  std::array<float, 8> from{};  // least magnitude in decade d
  std::array<float, 8> factor{}, offset{}, last{};
  // A place's value is y * value_factor[k] - value_offset[k], with y = place + `origin` and k the
  // lowest three bits of y's exponent: all places of a decade share an exponent.
  std::array<float, 8> value_factor{}, value_offset{};
  float origin = 0;
  int32_t zero = 0;  // code of 0; in the signed map codes of negative numbers are below it
  std::array<float, 256> value{};  // by code
};

constexpr uint32_t Dynamic8ValueEntry(float y) { return std::bit_cast<uint32_t>(y) >> 23 & 7; }

constexpr Dynamic8Map MakeDynamic8Map(bool has_sign) {
  Dynamic8Map map;
  const int numbers = has_sign ? 127 : 254;  // between 0 and 1
  map.origin = has_sign ? 0.5f : 1.5f;
  map.zero = has_sign ? numbers : 0;
  double power = 1e-6;
  double before = 0;  // the number before the decade's first number
  int places = 1;     // places of the earlier decades, and 0
  for (size_t d = 0; d < kDynamic8Decades; ++d) {
    const int n = has_sign ? 1 << d : 2 << d;
    const double first = power * (0.1 + 0.45 / n);
    map.from[d] = static_cast<float>((before + first) / 2);
    map.factor[d] = static_cast<float>(n / (0.9 * power));
    map.offset[d] = static_cast<float>(n / 9.0 - places);
    map.last[d] = static_cast<float>(places + n - 1);
    const uint32_t entry = Dynamic8ValueEntry(static_cast<float>(places) + map.origin);
    map.value_factor[entry] = static_cast<float>(0.9 * power / n);
    map.value_offset[entry] = static_cast<float>(0.8 * power);
    places += n;
    before = power * (1 - 0.45 / n);
    power *= 10;
  }
  // Decade 0 also maps the magnitudes below it, to place 0: one step at from[0], one between two
  // numbers.
  const double step = has_sign ? static_cast<double>(map.from[0]) : 0.3875e-6;
  map.factor[0] = static_cast<float>(1 / step);
  map.offset[0] = static_cast<float>(static_cast<double>(map.from[0]) / step - 1);
  map.from[0] = 0;
  map.from[7] = static_cast<float>((before + 1) / 2);
  map.offset[7] = -static_cast<float>(places);
  map.last[7] = static_cast<float>(places);
  // 0 and 1 share an entry.
  const uint32_t entry = Dynamic8ValueEntry(map.origin);
  map.value_factor[entry] = 1.0f / static_cast<float>(places);
  map.value_offset[entry] = map.origin * map.value_factor[entry];
  const auto zero = static_cast<size_t>(map.zero);
  for (int place = 0; place <= places; ++place) {
    const float y = static_cast<float>(place) + map.origin;
    const uint32_t k = Dynamic8ValueEntry(y);
    const float product = y * map.value_factor[k];
    const float value = product - map.value_offset[k];
    map.value[zero + static_cast<size_t>(place)] = value;
    if (has_sign && place < places) map.value[zero - static_cast<size_t>(place)] = -value;
  }
  if (has_sign) map.value[zero] = 0;
  return map;
}
inline constexpr Dynamic8Map kDynamic8Map = MakeDynamic8Map(true);
inline constexpr Dynamic8Map kUnsignedDynamic8Map = MakeDynamic8Map(false);
static_assert(kDynamic8Map.value[127] == 0 && kDynamic8Map.value[255] == 1);
static_assert(kUnsignedDynamic8Map.value[0] == 0 && kUnsignedDynamic8Map.value[255] == 1);
constexpr const Dynamic8Map& Dynamic8MapOf(Dtype dtype) {
  return dtype == Dtype::kDynamic8 ? kDynamic8Map : kUnsignedDynamic8Map;
}

// The code of x in [-1, 1]: the nearest (-1 gets the code of the least negative number). The map
// without a sign codes magnitudes.
constexpr uint8_t Dynamic8Code(const Dynamic8Map& map, float x) {
  const float a = x < 0 ? -x : x;
  size_t d = 7;
  while (a < map.from[d]) --d;
  // In double, where the product is exact, so that no compiler fuses it with the difference.
  const auto product =
      static_cast<float>(static_cast<double>(a) * static_cast<double>(map.factor[d]));
  const float exact = product - map.offset[d];
  const auto place = static_cast<int32_t>(exact < map.last[d] ? exact : map.last[d]);
  if (map.zero == 0 || x >= 0) return static_cast<uint8_t>(map.zero + place);
  return static_cast<uint8_t>(place > map.zero ? 0 : map.zero - place);
}

// The scale of a group from the bits of its largest positive number and of its largest negative
// number's magnitude, 0 if there is none. A subnormal scale becomes 0; if a number is not finite,
// the scale is infinity. For the map without a sign `negative` is 0, and `positive` the largest
// magnitude.
ZEROPLAN_HOST_DEVICE constexpr uint32_t Dynamic8ScaleBits(uint32_t positive, uint32_t negative) {
  const uint32_t magnitude = positive >= negative ? positive : negative;
  if (magnitude >= 0x7f800000u) return 0x7f800000u;
  if (magnitude < 0x00800000u) return 0;
  return positive >= negative ? magnitude : magnitude | 0x80000000u;
}

// The factor that numbers are multiplied with before they become codes; 0, which gives every number
// 0's code, if the scale is 0 or not finite. Numbers read with a scale that is not finite are not
// finite either.
ZEROPLAN_HOST_DEVICE constexpr float InverseDynamic8Scale(float scale) {
  const float magnitude = scale < 0 ? -scale : scale;
  return magnitude > 0 && magnitude <= 3.40282347e+38f ? 1.0f / scale : 0.0f;
}

}  // namespace zeroplan
