// Moments of eight bits: the maps, code by code against all 256, and every instruction set's loops.
#include "executor/kernels/dynamic8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "executor/kernels/cpu_levels.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

constexpr float kDynamicInfinity = std::numeric_limits<float>::infinity();
constexpr float kDynamicNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::array kDynamicKinds = {Dtype::kDynamic8, Dtype::kUnsignedDynamic8};
constexpr int64_t kDynamicBlock = kDynamic8Group * kDynamic8Groups;

// bitsandbytes.functional.create_dynamic_map(signed) of version 0.50, which is sorted by value.
TEST_CASE("dynamic8: the maps are bitsandbytes'") {
  struct Known {
    int code;
    double value;
  };
  const auto check = [](const Dynamic8Map& map, const std::vector<Known>& known) {
    for (const Known& k : known) {
      CAPTURE(k.code);
      const double value = static_cast<double>(map.value[static_cast<size_t>(k.code)]);
      CHECK(std::abs(value - k.value) <= 1e-6 * std::abs(k.value));
    }
    CHECK(std::is_sorted(map.value.begin(), map.value.end()));
    for (int code = 0; code < 256; ++code) {
      CHECK(Dynamic8Code(map, map.value[static_cast<size_t>(code)]) == code);
    }
  };
  check(kDynamic8Map, {{0, -0.992968738},
                       {1, -0.978906274},
                       {63, -0.107031256},
                       {64, -0.0985937491},
                       {95, -0.0114062503},
                       {125, -3.25000019e-06},
                       {126, -5.50000038e-07},
                       {127, 0},
                       {128, 5.50000038e-07},
                       {129, 3.25000019e-06},
                       {130, 7.7499999e-06},
                       {131, 2.12499981e-05},
                       {134, 8.87499991e-05},
                       {191, 0.107031256},
                       {192, 0.12109375},
                       {254, 0.992968738},
                       {255, 1}});
  check(kUnsignedDynamic8Map, {{0, 0},
                               {1, 3.2500003e-07},
                               {2, 7.7499999e-07},
                               {3, 2.12499981e-06},
                               {6, 8.87499937e-06},
                               {7, 1.56249989e-05},
                               {14, 9.43749983e-05},
                               {15, 0.000128125001},
                               {62, 0.00985937472},
                               {63, 0.010703126},
                               {126, 0.0992968753},
                               {127, 0.103515625},
                               {200, 0.616796851},
                               {253, 0.989453077},
                               {254, 0.996484399},
                               {255, 1}});
}

// The code nearest to x by its value, of two as near either.
bool IsNearest(const Dynamic8Map& map, float x, int code) {
  const auto away = [&](int c) {
    return std::abs(static_cast<double>(map.value[static_cast<size_t>(c)]) -
                    static_cast<double>(x));
  };
  int nearest = 0;
  for (int c = 1; c < 256; ++c) {
    if (away(c) < away(nearest)) nearest = c;
  }
  if (code == nearest) return true;
  // The place is a fp32 number of up to 255: a middle is met to within its last bits.
  const double step = std::abs(static_cast<double>(map.value[static_cast<size_t>(code)]) -
                               static_cast<double>(map.value[static_cast<size_t>(nearest)]));
  return std::abs(code - nearest) == 1 && away(code) - away(nearest) <= 4e-5 * step;
}

TEST_CASE("dynamic8: codes are the nearest of all 256") {
  ZEROPLAN_TEST_RNG(rng);
  for (const Dtype kind : kDynamicKinds) {
    const Dynamic8Map& map = Dynamic8MapOf(kind);
    const bool has_sign = kind == Dtype::kDynamic8;
    std::vector<float> numbers = {0.0f, 1.0f, 1e-7f, 1e-30f, 0x1p-149f};
    for (int code = 1; code < 256; ++code) {
      const auto at = static_cast<size_t>(code);
      const float middle = (map.value[at - 1] + map.value[at]) / 2;
      numbers.push_back(middle);
      numbers.push_back(std::nextafter(middle, -1.0f));
      numbers.push_back(std::nextafter(middle, 1.0f));
    }
    for (int i = 0; i < 60000; ++i) {
      const double uniform = static_cast<double>(rng.Below(1 << 24)) * 0x1p-24;
      numbers.push_back(static_cast<float>(i % 2 == 0 ? uniform : std::pow(10.0, -9 * uniform)));
    }
    for (float x : numbers) {
      if (!has_sign && x < 0) continue;
      REQUIRE(IsNearest(map, x, Dynamic8Code(map, x)));
      if (has_sign) REQUIRE(IsNearest(map, -x, Dynamic8Code(map, -x)));
    }
  }
}

struct CodedGroup {
  std::array<uint8_t, kDynamic8Group> codes{};
  float scale = 0;
};
bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// The definition, a number at a time.
CodedGroup ReferenceCodes(Dtype kind, const float* x) {
  const bool has_sign = kind == Dtype::kDynamic8;
  uint32_t positive = 0, negative = 0;
  for (int i = 0; i < kDynamic8Group; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    uint32_t& side = has_sign && bits >> 31 != 0 ? negative : positive;
    side = std::max(side, bits & 0x7fffffff);
  }
  CodedGroup group;
  group.scale = std::bit_cast<float>(Dynamic8ScaleBits(positive, negative));
  const float inverse = InverseDynamic8Scale(group.scale);
  for (size_t i = 0; i < kDynamic8Group; ++i) {
    const float y = inverse == 0 ? 0.0f : x[i] * inverse;
    group.codes[i] = Dynamic8Code(Dynamic8MapOf(kind), y);
  }
  return group;
}

// Groups of numbers that moments have, and of those that they had better not.
std::vector<std::vector<float>> OddAndUsualGroups(Rng& rng, bool has_sign) {
  std::vector<std::vector<float>> groups;
  const auto add = [&](auto&& number) {
    std::vector<float> group;
    for (int i = 0; i < kDynamic8Group; ++i) {
      const auto x = static_cast<float>(number(i));
      group.push_back(has_sign ? x : std::abs(x));
    }
    groups.push_back(group);
  };
  for (int i = 0; i < 40; ++i) {
    const double std = std::exp2(static_cast<double>(rng.Below(240)) - 120);
    add([&](int) { return rng.Normal(std); });
    // Many decades in one group.
    add([&](int) { return rng.Normal(std) * std::pow(10.0, -static_cast<double>(rng.Below(9))); });
    const int at = static_cast<int>(rng.Below(kDynamic8Group));
    add([&](int k) { return k == at ? 3.0 * std : 0.0; });
    add([&](int k) { return k == at ? -3.0 * std : rng.Normal(1e-3 * std); });
    add([&](int k) { return (k == at ? -1.0 : 1.0) * std; });
    add([&](int k) { return (k == at ? 1.0 : -1.0) * std; });
  }
  add([](int) { return 0.0; });
  add([](int k) { return k % 2 == 0 ? -0.0 : 0.0; });
  add([](int k) { return std::ldexp(k - 128.0, -149); });
  add([](int k) { return k == 9 ? 0x1p-126 : std::ldexp(k - 128.0, -149); });
  add([](int k) { return k == 9 ? -0x1p-126 : std::ldexp(k - 128.0, -149); });
  add([](int k) { return k % 3 == 0 ? 3.4028234e38 : -3.4028234e38; });
  add([](int k) { return k % 3 == 0 ? 1.5e38 : k; });
  return groups;
}

TEST_CASE("dynamic8: every instruction set makes the definition's bytes, and reads them") {
  ZEROPLAN_TEST_RNG(rng);
  for (const CpuLevel level : CpuLevelsHere()) {
    const AdamLoops& loops = *CpuKernelsOf(level)->adam;
    CAPTURE(CpuLevelName(level));
    for (const Dtype kind : kDynamicKinds) {
      CAPTURE(DtypeName(kind));
      const Dynamic8Map& map = Dynamic8MapOf(kind);
      for (const std::vector<float>& x : OddAndUsualGroups(rng, kind == Dtype::kDynamic8)) {
        const CodedGroup want = ReferenceCodes(kind, x.data());
        CodedGroup got, again;
        loops.encode(kind, x.data(), got.codes.data(), &got.scale);
        REQUIRE(SameBits(got.scale, want.scale));
        REQUIRE(got.codes == want.codes);
        std::array<float, kDynamic8Group> read{};
        loops.decode(kind, got.codes.data(), got.scale, read.data());
        for (size_t i = 0; i < read.size(); ++i) {
          REQUIRE(SameBits(read[i], map.value[got.codes[i]] * got.scale));
          // The number of the largest magnitude is kept, whatever its sign.
          if (x[i] == got.scale) REQUIRE(read[i] == x[i]);
        }
        // Read and made anew: the same bytes.
        loops.encode(kind, read.data(), again.codes.data(), &again.scale);
        REQUIRE(SameBits(again.scale, got.scale));
        REQUIRE(again.codes == got.codes);
      }
      // All codes, at any scale.
      for (int i = 0; i < 100; ++i) {
        CodedGroup all, again;
        all.scale = static_cast<float>(std::exp2(static_cast<double>(rng.Below(250)) - 125));
        if (kind == Dtype::kDynamic8 && i % 2 == 1) all.scale = -all.scale;
        for (size_t code = 0; code < 256; ++code) all.codes[code] = static_cast<uint8_t>(code);
        std::array<float, kDynamic8Group> read{};
        loops.decode(kind, all.codes.data(), all.scale, read.data());
        loops.encode(kind, read.data(), again.codes.data(), &again.scale);
        REQUIRE(SameBits(again.scale, all.scale));
        REQUIRE(again.codes == all.codes);
      }
    }
  }
}

TEST_CASE("dynamic8: a group with what is not finite is read as not finite, by itself") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (const Dtype kind : kDynamicKinds) {
    for (const float odd : {kDynamicInfinity, -kDynamicInfinity, kDynamicNan, -kDynamicNan}) {
      Tensor x(Dtype::kF32, 2 * kDynamicBlock), back(Dtype::kF32, 2 * kDynamicBlock);
      for (int64_t i = 0; i < x.size(); ++i) x.Set(i, std::abs(rng.Normal()));
      const int64_t at = rng.Below(x.size());
      x.Set(at, static_cast<double>(odd));
      Tensor blocks(kind, 2), again(kind, 2);
      bench.Run(KernelId::kConvert, {x.size()}, {&x, &blocks});
      bench.Run(KernelId::kConvert, {x.size()}, {&blocks, &back});
      for (int64_t i = 0; i < back.size(); ++i) {
        REQUIRE(std::isfinite(back[i]) == (i / kDynamic8Group != at / kDynamic8Group));
      }
      bench.Run(KernelId::kConvert, {x.size()}, {&back, &again});
      CHECK(again == blocks);
    }
  }
}

TEST_CASE("convert: moments of eight bits, within half a step on any number of threads") {
  ZEROPLAN_TEST_RNG(rng);
  Bench one(1), three(3);
  const int64_t n = 301 * kDynamicBlock;
  for (const Dtype kind : kDynamicKinds) {
    Tensor x(Dtype::kF32, n), back(Dtype::kF32, n);
    for (int64_t i = 0; i < n; ++i) {
      const double value = rng.Normal(0.01);
      x.Set(i, kind == Dtype::kDynamic8 ? value : value * value);
    }
    Tensor blocks(kind, n / kDynamicBlock), same(kind, n / kDynamicBlock);
    std::memset(blocks.arg().data, 0x5a, blocks.arg().bytes);
    one.Run(KernelId::kConvert, {n}, {&x, &blocks});
    three.Run(KernelId::kConvert, {n}, {&x, &same});
    CHECK(same == blocks);
    three.Run(KernelId::kConvert, {n}, {&blocks, &back});
    for (int64_t g = 0; g < n; g += kDynamic8Group) {
      double most = 0;
      for (int64_t i = g; i < g + kDynamic8Group; ++i) most = std::max(most, std::abs(x[i]));
      for (int64_t i = g; i < g + kDynamic8Group; ++i) {
        // Decade d has n numbers in 0.9 of 10^(d-6), half as many in the one below; and -1 is none.
        const double a = std::abs(x[i]) / most;
        const int d = std::max(0, static_cast<int>(std::floor(std::log10(a + 1e-9))) + 7);
        const double numbers = (kind == Dtype::kDynamic8 ? 1 : 2) << std::min(d, 6);
        const double step = 0.9 * std::pow(10.0, std::min(d, 6) - 6) / numbers;
        REQUIRE(std::abs(back[i] - x[i]) <= (0.51 * step + 3e-7) * most);
      }
    }
  }
}

TEST_CASE("dynamic8: launches that there are not") {
  Bench bench(1);
  const int64_t n = 2 * kDynamicBlock;
  Tensor fp32(Dtype::kF32, n), bf16(Dtype::kBF16, n), blocks(Dtype::kDynamic8, 2);
  Tensor few(Dtype::kUnsignedDynamic8, 1);
  const auto run = [&](Tensor& src, Tensor& dst, int64_t count, int flags = 0) {
    bench.Run(KernelId::kConvert, {count}, {&src, &dst}, flags);
  };
  CHECK_THROWS_AS(run(bf16, blocks, n), CheckFailure);
  CHECK_THROWS_AS(run(blocks, bf16, n), CheckFailure);
  CHECK_THROWS_AS(run(blocks, few, n), CheckFailure);
  CHECK_THROWS_AS(run(fp32, few, n), CheckFailure);
  CHECK_THROWS_AS(run(fp32, blocks, n - 256), CheckFailure);
  CHECK_THROWS_AS(run(fp32, blocks, n, kAccumulate), CheckFailure);
  CHECK_THROWS_AS(run(fp32, fp32, n, kHalfAway), CheckFailure);
  run(fp32, blocks, n);
}

}  // namespace
}  // namespace zeroplan::kernel_test
