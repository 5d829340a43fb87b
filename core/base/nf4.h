// NF4 with double quantization: four bits for each element of a frozen model's matrices (QLoRA,
// Dettmers et al. 2023, arXiv 2305.14314, section 3), with the rules and codes of bitsandbytes.
//
// 64 elements share their largest magnitude, m, and the code of an element x is that of the value
// nearest to x / m. 256 such maxima are quantized in turn: their mean is subtracted, and each
// becomes one of 256 values times the largest that is left. Here these 16384 elements are one
// block, so that a tensor can be split between blocks and each part is made, read and sent by
// itself. bitsandbytes uses one mean for a whole tensor: codes and maxima are the same, but here
// the second quantization uses its block's mean instead.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"

namespace zeroplan {

inline constexpr int kNf4Group = 64;    // elements that share a maximum
inline constexpr int kNf4Groups = 256;  // maxima that share a scale
inline constexpr int kNf4Block = kNf4Group * kNf4Groups;

struct Nf4Block {
  uint8_t codes[kNf4Block / 2];  // two a byte, the first in the upper four bits
  uint8_t maxima[kNf4Groups];    // indices into kNf4MaximumValues
  float scale;                   // largest |m - offset| of the maxima that are not 0
  float offset;                  // mean of the maxima that are not 0
  uint32_t unused[2];            // 0: blocks start at multiples of 16 bytes
};
static_assert(sizeof(Nf4Block) == DtypeBytes(Dtype::kNf4));
static_assert(kNf4Block == DtypeElements(Dtype::kNf4));

// The values of the codes: quantiles of the normal distribution, scaled to [-1, 1] (the paper's
// appendix E).
inline constexpr std::array<float, 16> kNf4Values = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
// The code of the value 0.
inline constexpr uint8_t kNf4Zero = 7;

namespace nf4_internal {

// The dynamic 8-bit data type with a sign (Dettmers 2016, arXiv 1511.04561, section 1.3.3): for
// each power of ten from 1e-6 to 1 twice as many fractions as for the one below, each the middle of
// an equal part of [0.1, 1]; 0; and 1. Rounded as torch.linspace rounds in fp32.
constexpr std::array<float, 256> MaximumValues() {
  constexpr float kPowers[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  std::array<float, 256> values{};
  size_t above = 128;  // the first positive value
  values[127] = 0;
  for (int i = 0; i < 7; ++i) {
    const int parts = 1 << i;
    const float step = (1.0f - 0.1f) / static_cast<float>(parts);
    const auto border = [&](int k) {
      return k < (parts + 1) / 2
                 ? static_cast<float>(static_cast<double>(0.1f) + static_cast<double>(step) * k)
                 : static_cast<float>(1.0 - static_cast<double>(step) * (parts - k));
    };
    for (int k = 0; k < parts; ++k) {
      const float middle = (border(k) + border(k + 1)) / 2;
      values[above] = kPowers[i] * middle;
      values[254 - above] = -values[above];
      ++above;
    }
  }
  values[255] = 1;
  return values;
}

template <size_t n>
constexpr std::array<float, n - 1> Middles(const std::array<float, n>& values) {
  std::array<float, n - 1> middles{};
  for (size_t i = 0; i + 1 < n; ++i) middles[i] = (values[i] + values[i + 1]) / 2;
  return middles;
}

}  // namespace nf4_internal

// In ascending order, like the codes' values.
inline constexpr std::array<float, 256> kNf4MaximumValues = nf4_internal::MaximumValues();

// The code of the maximum 0.
inline constexpr uint8_t kNf4ZeroMaximum = 127;
static_assert(kNf4MaximumValues[kNf4ZeroMaximum] == 0);

// A code is the number of middles between neighbours below the number to round. The middles of the
// 16 values are those of bitsandbytes' CUDA kernel, some of which are off in the last place.
inline constexpr std::array<float, 15> kNf4Middles = {
    -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
    0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f,
};
inline constexpr std::array<float, 255> kNf4MaximumMiddles =
    nf4_internal::Middles(kNf4MaximumValues);

}  // namespace zeroplan
