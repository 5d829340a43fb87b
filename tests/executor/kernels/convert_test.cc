// Narrowing and widening, for every 16-bit pattern and against arithmetic in double, and master
// weights in two halves.
#include "executor/kernels/convert.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "core/base/split_master.h"
#include "executor/kernels/cpu_levels.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

// The value of a 16-bit float from its definition.
double Decode(Dtype dtype, uint16_t bits) {
  const int mantissa_bits = dtype == Dtype::kBF16 ? 7 : 10;
  const int exponent_max = dtype == Dtype::kBF16 ? 255 : 31;
  const int bias = exponent_max / 2;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const double mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == exponent_max) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

std::vector<uint16_t> AllPatterns() {
  std::vector<uint16_t> all;
  for (int i = 0; i < 0x10000; ++i) all.push_back(static_cast<uint16_t>(i));
  return all;
}

// fn(kernels, dtype) at each level of instruction sets here.
template <typename Fn>
void AtEachLevel(Fn&& fn) {
  for (const CpuLevel level : CpuLevelsHere()) {
    CAPTURE(CpuLevelName(level));
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) fn(*CpuKernelsOf(level), dtype);
  }
}

TEST_CASE("every 16-bit pattern widens exactly and narrows back to itself") {
  AtEachLevel([](const CpuKernelSet& kernels, Dtype dtype) {
    const std::vector<uint16_t> patterns = AllPatterns();
    std::vector<float> wide(patterns.size());
    std::vector<uint16_t> back(patterns.size());
    kernels.widen(dtype, patterns.data(), 0x10000, wide.data());
    kernels.narrow(dtype, wide.data(), 0x10000, back.data());
    for (size_t i = 0; i < patterns.size(); ++i) {
      const double want = Decode(dtype, patterns[i]);
      if (std::isnan(want)) {
        REQUIRE(std::isnan(wide[i]));
        REQUIRE(std::isnan(Decode(dtype, back[i])));
        continue;
      }
      REQUIRE(static_cast<double>(wide[i]) == want);
      REQUIRE(std::signbit(wide[i]) == std::signbit(want));
      REQUIRE(back[i] == patterns[i]);
    }
  });
}

// Every border between two neighbours: the middle goes to the even one, a hair beside it to the
// nearer.
TEST_CASE("narrowing rounds to nearest, ties to even") {
  AtEachLevel([](const CpuKernelSet& kernels, Dtype dtype) {
    const uint16_t infinity = dtype == Dtype::kBF16 ? 0x7f80 : 0x7c00;
    for (uint16_t low = 0; low < infinity; ++low) {
      const double a = Decode(dtype, low);
      // Past the largest number the border lies where the next one would be.
      const double b = low + 1 == infinity ? 2 * a - Decode(dtype, static_cast<uint16_t>(low - 1))
                                           : Decode(dtype, static_cast<uint16_t>(low + 1));
      const auto middle = static_cast<float>((a + b) / 2);
      if (static_cast<double>(middle) != (a + b) / 2) continue;  // fp32 cannot say it
      const float inputs[3] = {std::nextafter(middle, 0.0f), middle,
                               std::nextafter(middle, INFINITY)};
      uint16_t got[3];
      kernels.narrow(dtype, inputs, 3, got);
      const auto up = static_cast<uint16_t>(low + 1);
      REQUIRE(got[0] == low);
      REQUIRE(got[1] == (low % 2 == 0 ? low : up));
      REQUIRE(got[2] == up);
    }
  });
}

TEST_CASE("what is too large becomes infinity, NaN stays NaN, zero keeps its sign") {
  AtEachLevel([](const CpuKernelSet& kernels, Dtype dtype) {
    const float inputs[5] = {3.4e38f, -3.4e38f, NAN, -0.0f, std::bit_cast<float>(0x7f800001u)};
    uint16_t got[5];
    kernels.narrow(dtype, inputs, 5, got);
    CHECK(Decode(dtype, got[0]) == INFINITY);
    CHECK(Decode(dtype, got[1]) == -INFINITY);
    CHECK(std::isnan(Decode(dtype, got[2])));
    CHECK(got[3] == 0x8000);
    CHECK(std::isnan(Decode(dtype, got[4])));
  });
}

TEST_CASE("exp of the vector library") {
  ZEROPLAN_TEST_RNG(rng);
  double worst = 0;
  for (int i = 0; i < 100'000; ++i) {
    const auto x =
        static_cast<float>(static_cast<double>(rng.Below(1 << 30)) / (1 << 30) * 176 - 87.3);
    float lanes[simd::kLanes];
    simd::Store(lanes, simd::Exp(simd::Splat(x)));
    const double want = std::exp(static_cast<double>(x));
    if (want > 3.4e38) continue;
    worst = std::max(worst, std::abs(static_cast<double>(lanes[0]) - want) / want);
  }
  CHECK(worst < 2 * 0x1p-23);  // two units in the last place
  const auto exp_of = [](float x) {
    float lanes[simd::kLanes];
    simd::Store(lanes, simd::Exp(simd::Splat(x)));
    return lanes[0];
  };
  CHECK(exp_of(0) == 1);
  CHECK(exp_of(-1000) == 0);
  CHECK(exp_of(-INFINITY) == 0);
  CHECK(exp_of(INFINITY) == INFINITY);
  CHECK(exp_of(1000) == INFINITY);
  CHECK(std::isfinite(exp_of(88.72f)));
  CHECK(std::isnan(exp_of(NAN)));
}

// Numbers whose halves are of interest: around ties, the ends of the range, and what is none.
std::vector<uint32_t> InterestingBits(Rng& rng) {
  std::vector<uint32_t> all;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      all.push_back(upper << 16 | lower);
    }
    all.push_back(static_cast<uint32_t>(rng.Word()));
  }
  return all;
}

TEST_CASE("split and join: every number comes back, and bf16 is rounded away from zero") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  const std::vector<uint32_t> bits = InterestingBits(rng);
  const auto n = static_cast<int64_t>(bits.size());
  Tensor master(Dtype::kF32, n), param(Dtype::kBF16, n), rest(Dtype::kI16, n), back(Dtype::kF32, n);
  Tensor converted(Dtype::kBF16, n);
  std::memcpy(master.arg().data, bits.data(), master.arg().bytes);
  bench.Run(KernelId::kSplitMaster, {n}, {&master, &param, &rest});
  bench.Run(KernelId::kJoinMaster, {n}, {&param, &rest, &back});
  bench.Run(KernelId::kConvert, {n}, {&master, &converted}, kHalfAway);
  CHECK(converted == param);
  for (size_t i = 0; i < bits.size(); ++i) {
    CAPTURE(bits[i]);
    const auto x = std::bit_cast<float>(bits[i]);
    const uint16_t upper = param.arg().as<uint16_t>()[i];
    const SplitMaster halves{upper, rest.arg().as<int16_t>()[i]};
    REQUIRE(halves.param == Split(x).param);
    REQUIRE(halves.rest == Split(x).rest);
    const auto joined = back.arg().as<uint32_t>()[i];
    REQUIRE(joined == std::bit_cast<uint32_t>(Join(halves)));
    if (std::isnan(x)) {
      REQUIRE(std::isnan(std::bit_cast<float>(joined)));
      REQUIRE(std::isnan(std::bit_cast<float>(uint32_t{upper} << 16)));
      continue;
    }
    REQUIRE(joined == bits[i]);
    // The nearest, of two as near the one further from 0.
    const double want = static_cast<double>(x);
    const double below = static_cast<double>(std::bit_cast<float>(bits[i] & 0xffff0000u));
    const double above =
        static_cast<double>(std::bit_cast<float>((bits[i] & 0xffff0000u) + 0x10000u));
    const double got = static_cast<double>(std::bit_cast<float>(uint32_t{upper} << 16));
    if (!std::isfinite(above)) continue;
    const bool up = std::abs(above - want) <= std::abs(want - below);
    REQUIRE(got == ((bits[i] & 0xffffu) == 0 ? below : up ? above : below));
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
