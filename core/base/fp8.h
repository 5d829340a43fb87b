// 8-bit floating-point numbers for the matmuls of GPUs: E4M3 (four bits of exponent, three of
// mantissa, no infinity, largest 448) and E5M2 (five and two, largest 57344), of the OCP 8-bit
// Floating Point Specification, revision 1.0. Plain C++, because CUDA sources include this.
//
// A tensor, or a block of one, has a scale, computed from its largest magnitude: stored = x *
// inverse scale, x = stored * scale. Both backends use the same fp32 steps, each rounded by itself,
// so that they give the same bits.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define ZEROPLAN_FP8_FN __host__ __device__ inline
#else
#define ZEROPLAN_FP8_FN inline
#endif

namespace zeroplan {

inline constexpr float kLargestE4M3 = 448, kLargestE5M2 = 57344;

// Rows and columns of a block with its own scale.
inline constexpr int64_t kFp8Block = 128;
// Scales in a row of blocks of 128 x 128, for `cols` columns: the library's alignment.
constexpr int64_t Fp8BlockScalesRow(int64_t cols) { return (cols / kFp8Block + 3) / 4 * 4; }

// A slot holds a tensor's largest magnitude and its scale, as F32, at these offsets. The library
// requires scales at multiples of 16 bytes.
inline constexpr uint64_t kFp8SlotBytes = 32, kFp8AmaxAt = 0, kFp8ScaleAt = 16;

// Smaller magnitudes count as this, so that neither the scale nor its inverse leaves fp32.
inline constexpr float kLeastFp8Amax = 0x1p-100f;

// `largest` is kLargestE4M3 or kLargestE5M2. If an element is NaN or infinite, amax is too, and
// with it the scale and the matmul's result.
ZEROPLAN_FP8_FN float Fp8InverseScale(float amax, float largest) {
  return largest / (amax < kLeastFp8Amax ? kLeastFp8Amax : amax);
}
ZEROPLAN_FP8_FN float Fp8Scale(float amax, float largest) {
  return (amax < kLeastFp8Amax ? kLeastFp8Amax : amax) / largest;
}

// The bits of |x|, whose order is that of the magnitudes: finite < infinite < NaN.
ZEROPLAN_FP8_FN uint32_t MagnitudeBits(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x) & 0x7fffffffu;
#else
  return std::bit_cast<uint32_t>(x) & 0x7fffffffu;
#endif
}

#ifndef __CUDA_ARCH__

// Rounds to the nearest 8-bit number, ties to even, at most the largest; NaN becomes 0x7f. Same as
// the processors' own conversions with saturation (cvt.rn.satfinite).
template <int kExponentBits>
uint8_t ToFp8(float x) {
  constexpr int kMantissa = 7 - kExponentBits, kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr uint32_t kLargestCode = kExponentBits == 4 ? 0x7e : 0x7b;
  constexpr float kLargest = kExponentBits == 4 ? kLargestE4M3 : kLargestE5M2;
  const uint32_t bits = MagnitudeBits(x), sign = std::bit_cast<uint32_t>(x) >> 31 << 7;
  if (bits > 0x7f800000u) return 0x7f;
  const float magnitude = std::bit_cast<float>(bits);
  if (magnitude >= kLargest) return static_cast<uint8_t>(sign | kLargestCode);
  uint32_t code = 0;
  if (bits < static_cast<uint32_t>(127 - kBias + 1) << 23) {
    // Below the least normal number codes are a fixed step apart. Adding a number whose last bit is
    // that step makes fp32 round to the step.
    constexpr int kStep = 1 - kBias - kMantissa;
    constexpr uint32_t kBeside = static_cast<uint32_t>(127 + kStep + 23) << 23;
    code = std::bit_cast<uint32_t>(magnitude + std::bit_cast<float>(kBeside)) - kBeside;
  } else {
    constexpr int kDrop = 23 - kMantissa;
    const uint32_t rebased = bits - (static_cast<uint32_t>(127 - kBias) << 23);
    const uint32_t half = (1u << (kDrop - 1)) - 1u + ((rebased >> kDrop) & 1u);
    code = (rebased + half) >> kDrop;
  }
  return static_cast<uint8_t>(sign | (code < kLargestCode ? code : kLargestCode));
}
inline uint8_t ToE4M3(float x) { return ToFp8<4>(x); }
inline uint8_t ToE5M2(float x) { return ToFp8<5>(x); }

template <int kExponentBits>
constexpr float FromFp8(uint8_t code) {
  constexpr int kMantissa = 7 - kExponentBits, kBias = (1 << (kExponentBits - 1)) - 1;
  const uint32_t sign = static_cast<uint32_t>(code >> 7) << 31, rest = code & 0x7fu;
  const bool is_nan = kExponentBits == 4 ? rest == 0x7f : rest > 0x7c;
  if (is_nan) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (kExponentBits == 5 && rest == 0x7c) return std::bit_cast<float>(sign | 0x7f800000u);
  const uint32_t exponent = rest >> kMantissa, mantissa = rest & ((1u << kMantissa) - 1u);
  if (exponent == 0) {
    const auto step =
        std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - kBias - kMantissa) << 23);
    const float value = static_cast<float>(mantissa) * step;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent + 127u - static_cast<uint32_t>(kBias)) << 23 |
                              mantissa << (23 - kMantissa));
}
constexpr float FromE4M3(uint8_t code) { return FromFp8<4>(code); }
constexpr float FromE5M2(uint8_t code) { return FromFp8<5>(code); }

#endif  // __CUDA_ARCH__

}  // namespace zeroplan
