// Numbers of eight bits against their definition in double.
#include "core/base/fp8.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/test_seed.h"

namespace zeroplan {
namespace {

constexpr float kInfinityF = std::numeric_limits<float>::infinity();
constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();

// A format by its definition.
struct Fp8Format {
  int exponent_bits, mantissa_bits;
  uint8_t largest_code;
  float largest;
  uint8_t (*encode)(float);
  float (*decode)(uint8_t);

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  // Of a code that is a number, without its sign.
  double Value(int code) const {
    const int mantissa = code & ((1 << mantissa_bits) - 1), exponent = code >> mantissa_bits;
    const int hidden = exponent > 0 ? 1 << mantissa_bits : 0;
    return std::ldexp(mantissa + hidden, std::max(exponent, 1) - bias() - mantissa_bits);
  }
  // The code nearest to a number, of two the even one; the largest where it is beyond.
  int Nearest(double magnitude) const {
    if (magnitude >= static_cast<double>(largest)) return largest_code;
    int best = 0;
    for (int code = 1; code <= largest_code; ++code) {
      const double now = std::abs(Value(code) - magnitude);
      const double least = std::abs(Value(best) - magnitude);
      if (now < least || (now == least && code % 2 == 0)) best = code;
    }
    return best;
  }
};
const Fp8Format kFormats[] = {{4, 3, 0x7e, kLargestE4M3, ToE4M3, FromE4M3},
                              {5, 2, 0x7b, kLargestE5M2, ToE5M2, FromE5M2}};

// Counts, since a check for each of millions of numbers takes long.
struct Mismatches {
  int count = 0;
  float first = 0;
  void Check(const Fp8Format& format, float x) {
    const int sign = std::signbit(x) ? 0x80 : 0;
    if (format.encode(x) == (format.Nearest(std::abs(static_cast<double>(x))) | sign)) return;
    if (count++ == 0) first = x;
  }
};

TEST_CASE("fp8: the codes are the numbers that the formats define, and come back") {
  for (const Fp8Format& format : kFormats) {
    CAPTURE(format.exponent_bits);
    CHECK(format.Value(format.largest_code) == static_cast<double>(format.largest));
    for (int code = 0; code < 256; ++code) {
      CAPTURE(code);
      const auto byte = static_cast<uint8_t>(code);
      const float value = format.decode(byte);
      const int rest = code & 0x7f;
      CHECK(std::signbit(value) == (code >= 128));
      if (rest <= format.largest_code) {
        CHECK(std::abs(static_cast<double>(value)) == format.Value(rest));
        CHECK(format.encode(value) == byte);
      } else if (format.exponent_bits == 5 && rest == 0x7c) {
        CHECK(std::isinf(value));
        CHECK(format.encode(value) == byte - 1);  // saturates
      } else {
        CHECK(std::isnan(value));
        CHECK(format.encode(value) == 0x7f);
      }
    }
  }
}

TEST_CASE("fp8: rounding is to the nearest, of two to the even one") {
  for (const Fp8Format& format : kFormats) {
    CAPTURE(format.exponent_bits);
    Mismatches wrong;
    const auto both_signs = [&](float x) {
      wrong.Check(format, x);
      wrong.Check(format, -x);
    };
    // Every number, every midpoint, and what fp32 has beside them.
    for (int code = 0; code < format.largest_code; ++code) {
      const double low = format.Value(code), high = format.Value(code + 1);
      for (const double exact : {low, (low + high) / 2, high}) {
        const auto x = static_cast<float>(exact);
        REQUIRE(static_cast<double>(x) == exact);
        both_signs(x);
        both_signs(std::nextafter(x, kInfinityF));
        if (x > 0) both_signs(std::nextafter(x, 0.0f));
      }
    }
    // All that bf16 holds, and random bits.
    for (uint32_t high = 0; high < 0x7f80; ++high) both_signs(std::bit_cast<float>(high << 16));
    std::mt19937_64 random(TestSeed());
    for (int i = 0; i < 20'000; ++i) {
      // Within the format's range and a little beyond, where random bits seldom lie.
      const auto exponent = static_cast<uint32_t>(100 + random() % 48);
      const auto mantissa = static_cast<uint32_t>(random() & 0x7fffff);
      both_signs(std::bit_cast<float>(exponent << 23 | mantissa));
    }
    CAPTURE(wrong.first);
    CHECK(wrong.count == 0);
  }
}

TEST_CASE("fp8: beyond the largest number, at infinity, NaN and zero") {
  for (const Fp8Format& format : kFormats) {
    CAPTURE(format.exponent_bits);
    for (const float x : {format.largest, std::nextafter(format.largest, kInfinityF),
                          2 * format.largest, std::numeric_limits<float>::max(), kInfinityF}) {
      CHECK(format.encode(x) == format.largest_code);
      CHECK(format.encode(-x) == (format.largest_code | 0x80));
    }
    CHECK(format.encode(0.0f) == 0);
    CHECK(format.encode(-0.0f) == 0x80);
    CHECK(format.encode(std::numeric_limits<float>::denorm_min()) == 0);
    CHECK(format.encode(-std::numeric_limits<float>::denorm_min()) == 0x80);
    CHECK(format.encode(kNanF) == 0x7f);
    CHECK(format.encode(-kNanF) == 0x7f);                             // one code for all
    CHECK(format.encode(std::bit_cast<float>(0x7f800001u)) == 0x7f);  // a signalling one
  }
}

TEST_CASE("fp8: scales bring the largest magnitude to the largest number, and back") {
  std::mt19937_64 random(TestSeed());
  std::uniform_real_distribution<float> exponents(-99, 127), within(-1, 1);
  for (const Fp8Format& format : kFormats) {
    CAPTURE(format.exponent_bits);
    for (int i = 0; i < 2000; ++i) {
      const float amax = std::exp2(exponents(random));
      CAPTURE(amax);
      const float inverse = Fp8InverseScale(amax, format.largest);
      const float scale = Fp8Scale(amax, format.largest);
      REQUIRE(std::isnormal(inverse));
      REQUIRE(std::isnormal(scale));
      CHECK(format.encode(amax * inverse) == format.largest_code);
      // Roundings of scale, inverse and product, and of the number: half a step of its binade, at
      // least half the least step.
      const float x = amax * within(random);
      const double back = static_cast<double>(format.decode(format.encode(x * inverse))) * scale;
      const double half_step =
          std::max(std::ldexp(std::abs(static_cast<double>(x)), -1 - format.mantissa_bits),
                   std::ldexp(static_cast<double>(scale), -format.bias() - format.mantissa_bits));
      CHECK(std::abs(back - x) <= half_step + 4 * 0x1p-24 * std::abs(static_cast<double>(x)));
    }
  }
}

TEST_CASE("fp8: scales of nothing, of very little, of infinity and NaN") {
  for (const Fp8Format& format : kFormats) {
    const float largest = format.largest;
    for (const float small : {0.0f, std::numeric_limits<float>::denorm_min(), 0x1p-126f,
                              std::nextafter(kLeastFp8Amax, 0.0f), kLeastFp8Amax}) {
      CHECK(Fp8InverseScale(small, largest) == largest / kLeastFp8Amax);
      CHECK(Fp8Scale(small, largest) == kLeastFp8Amax / largest);
      CHECK(std::isfinite(Fp8InverseScale(small, largest)));
      CHECK(std::isnormal(Fp8Scale(small, largest)));
    }
    CHECK(format.encode(0.0f * Fp8InverseScale(0, largest)) == 0);
    CHECK(std::isnormal(Fp8InverseScale(std::numeric_limits<float>::max(), largest)));

    // An infinity: finite numbers become 0, the scale makes a NaN of each. It itself becomes one.
    CHECK(Fp8InverseScale(kInfinityF, largest) == 0);
    CHECK(std::isinf(Fp8Scale(kInfinityF, largest)));
    CHECK(std::isnan(0 * Fp8Scale(kInfinityF, largest)));
    CHECK((format.encode(kInfinityF * 0.0f) & 0x7f) == 0x7f);
    CHECK(std::isnan(Fp8InverseScale(kNanF, largest)));
    CHECK(std::isnan(Fp8Scale(kNanF, largest)));
    CHECK((format.encode(1 * Fp8InverseScale(kNanF, largest)) & 0x7f) == 0x7f);
  }
}

TEST_CASE("fp8: bits of magnitudes order as the magnitudes do, NaN above all") {
  const std::vector<float> rising = {0.0f,       std::numeric_limits<float>::denorm_min(),
                                     0x1p-126f,  0.5f,
                                     1.0f,       std::nextafter(1.0f, 2.0f),
                                     448.0f,     std::numeric_limits<float>::max(),
                                     kInfinityF, std::bit_cast<float>(0x7f800001u)};
  for (size_t i = 0; i < rising.size(); ++i) {
    CHECK(MagnitudeBits(rising[i]) == MagnitudeBits(-rising[i]));
    if (i > 0) CHECK(MagnitudeBits(rising[i - 1]) < MagnitudeBits(rising[i]));
  }
  CHECK(MagnitudeBits(0.0f) == 0);
  CHECK(std::bit_cast<float>(MagnitudeBits(-3.5f)) == 3.5f);
}

TEST_CASE("fp8: rows of scales of blocks are padded to four") {
  CHECK(Fp8BlockScalesRow(128) == 4);
  CHECK(Fp8BlockScalesRow(512) == 4);
  CHECK(Fp8BlockScalesRow(640) == 8);
}

}  // namespace
}  // namespace zeroplan
