// Adam's moments with eight bits an element: the dynamic map of 8-bit optimizers (Dettmers et al.
// 2022, "8-bit Optimizers via Block-wise Quantization", arXiv 2110.02861, section 2.1), whose codes
// are those of bitsandbytes' create_dynamic_map, in blocks of 256 elements with an fp32 scale.
//
// The codes stand for 0, 1 and numbers of seven decades, 10^-7 to 1. Decade d = 0..6 has n = 2^d of
// them (twice as many where there is no sign): 10^(d-6) * (0.1 + 0.9 * (j + 1/2) / n), j < n. They
// are numbered in order of their value: negative ones, 0, positive ones, 1.
//
// A number is its code's times its group's scale: the number of the group with the largest
// magnitude, the positive one of two. So that one is kept exactly, where bitsandbytes' scale has no
// sign and a negative one is off by 0.7 %; and a group that is read and made anew has the same
// codes and the same scale.
//
// Four groups of 256 are a block, which lies by itself.
#pragma once

#include <array>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/host_device.h"

namespace zeroplan {

inline constexpr int kDynamic8Group = 256;  // elements with one scale
inline constexpr int kDynamic8Groups = 4;   // of a block
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

// What one of the two maps is made of. Positive numbers below 1 are numbered from 0; decade d has
// numbers [base[d], base[d] + count[d]).
struct Dynamic8Map {
  std::array<float, 256> value{};                 // by code
  std::array<float, kDynamic8Decades> from{};     // least magnitude that goes to decade d
  std::array<float, kDynamic8Decades> factor{};   // of a magnitude a in decade d,
  std::array<float, kDynamic8Decades> offset{};   // j = floor(a * factor - offset), clamped
  std::array<int32_t, kDynamic8Decades> base{};   //
  std::array<int32_t, kDynamic8Decades> count{};  //
  float one_from = 0;                             // least magnitude that goes to 1
  int32_t zero = 0;                               // code of 0; of positive number k: zero + 1 + k
};

constexpr Dynamic8Map MakeDynamic8Map(bool has_sign) {
  Dynamic8Map map;
  std::array<double, 256> positive{};
  int numbers = 0;
  double power = 1e-6;
  double before = 0;  // the number before the decade's first
  for (int d = 0; d < kDynamic8Decades; ++d) {
    const int n = has_sign ? 1 << d : 2 << d;
    const auto at = static_cast<size_t>(d);
    for (int j = 0; j < n; ++j) {
      positive[static_cast<size_t>(numbers + j)] = power * (0.1 + 0.9 * (j + 0.5) / n);
    }
    map.base[at] = numbers;
    map.count[at] = n;
    map.from[at] = static_cast<float>((before + positive[static_cast<size_t>(numbers)]) / 2);
    map.factor[at] = static_cast<float>(n / (0.9 * power));
    map.offset[at] = static_cast<float>(n / 9.0);
    numbers += n;
    before = positive[static_cast<size_t>(numbers - 1)];
    power *= 10;
  }
  map.one_from = static_cast<float>((before + 1) / 2);
  map.zero = has_sign ? numbers : 0;
  map.value[255] = 1;
  for (int k = 0; k < numbers; ++k) {
    const auto value = static_cast<float>(positive[static_cast<size_t>(k)]);
    map.value[static_cast<size_t>(map.zero + 1 + k)] = value;
    if (has_sign) map.value[static_cast<size_t>(map.zero - 1 - k)] = -value;
  }
  return map;
}
inline constexpr Dynamic8Map kDynamic8Map = MakeDynamic8Map(true);
inline constexpr Dynamic8Map kUnsignedDynamic8Map = MakeDynamic8Map(false);
constexpr const Dynamic8Map& Dynamic8MapOf(Dtype dtype) {
  return dtype == Dtype::kDynamic8 ? kDynamic8Map : kUnsignedDynamic8Map;
}

// The code of x in [-1, 1], the nearest. A magnitude's decade is the last one whose `from` is not
// above it. Backends take these steps, in fp32 with each operation rounded by itself.
constexpr uint8_t Dynamic8Code(const Dynamic8Map& map, float x) {
  const float a = x < 0 ? -x : x;
  if (!(a >= map.from[0])) return static_cast<uint8_t>(map.zero);
  size_t d = 0;
  while (d + 1 < kDynamic8Decades && a >= map.from[d + 1]) ++d;
  const float scaled = a * map.factor[d];
  int32_t j = static_cast<int32_t>(scaled - map.offset[d]);  // toward 0, and so -0.5 is 0
  j = j < 0 ? 0 : j >= map.count[d] ? map.count[d] - 1 : j;
  const int32_t k = map.base[d] + j;
  if (x < 0) return static_cast<uint8_t>(map.zero - 1 - k);
  return static_cast<uint8_t>(a >= map.one_from ? 255 : map.zero + 1 + k);
}

// What numbers are multiplied with before they become codes: 0 where the scale is 0, subnormal or
// not finite, which makes all codes 0's.
ZEROPLAN_HOST_DEVICE constexpr float InverseDynamic8Scale(float scale) {
  const float magnitude = scale < 0 ? -scale : scale;
  return magnitude >= 1.17549435e-38f && magnitude <= 3.4e38f ? 1.0f / scale : 0.0f;
}

}  // namespace zeroplan
