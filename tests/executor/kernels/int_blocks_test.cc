// Blocks of int8 and int4, byte by byte against loops over the format's definition
// (core/base/int_blocks.h), and their numbers and sums against double precision.
#include "executor/kernels/int_blocks.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/base/error.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

constexpr float kIntInfinity = std::numeric_limits<float>::infinity();
constexpr std::array kKinds = {Dtype::kInt8Blocks, Dtype::kInt4Blocks};

int Largest(Dtype kind) { return kind == Dtype::kInt8Blocks ? 127 : 7; }

// Product and sum, each rounded: `volatile` keeps the compiler from making one operation of them.
float Times(float a, float b) {
  volatile float product = a * b;
  return product;
}

struct Group {
  float scale = 0;
  std::array<int, kIntGroup> codes{};
};

Group ReferenceGroup(const float* x, Dtype kind) {
  Group group;
  float most = 0;
  bool finite = true;
  for (int i = 0; i < kIntGroup; ++i) {
    finite = finite && std::isfinite(x[i]);
    most = std::max(most, std::fabs(x[i]));
  }
  if (!finite) return {kIntInfinity, {}};
  group.scale = std::max(most / static_cast<float>(Largest(kind)), 0x1p-126f);
  const float inverse = 1.0f / group.scale;
  for (int i = 0; i < kIntGroup; ++i) {
    group.codes[static_cast<size_t>(i)] = static_cast<int>(std::nearbyint(Times(x[i], inverse)));
  }
  return group;
}

// Group g of the blocks in `t`, as the definition says that it lies.
Group GroupAt(Tensor& t, int64_t g) {
  Group group;
  const auto b = static_cast<size_t>(g / kIntGroups),
             in_block = static_cast<size_t>(g % kIntGroups);
  for (size_t i = 0; i < kIntGroup; ++i) {
    if (t.dtype() == Dtype::kInt8Blocks) {
      group.codes[i] = t.arg().as<Int8Block>()[b].codes[in_block][i];
      group.scale = t.arg().as<Int8Block>()[b].scales[in_block];
    } else {
      const uint8_t byte = t.arg().as<Int4Block>()[b].codes[in_block][i % 128];
      const int code = i < 128 ? byte & 15 : byte >> 4;
      group.codes[i] = code >= 8 ? code - 16 : code;
      group.scale = t.arg().as<Int4Block>()[b].scales[in_block];
    }
  }
  return group;
}

std::vector<float> Numbers(Tensor& blocks) {
  std::vector<float> x;
  for (int64_t g = 0; g < blocks.size() * kIntGroups; ++g) {
    const Group group = GroupAt(blocks, g);
    for (const int code : group.codes) x.push_back(Times(static_cast<float>(code), group.scale));
  }
  return x;
}

std::vector<float> FloatsOf(const Tensor& t) {
  std::vector<float> x;
  for (int64_t i = 0; i < t.size(); ++i) x.push_back(static_cast<float>(t[i]));
  return x;
}

// The kernel's blocks, over bytes of something else.
Tensor QuantizeInt(Bench& bench, Tensor& x, Dtype kind) {
  Tensor blocks(kind, x.size() / kIntBlock);
  std::memset(blocks.arg().data, 0x5a, blocks.arg().bytes);
  bench.Run(KernelId::kConvert, {x.size()}, {&x, &blocks});
  return blocks;
}

void CheckGroups(Tensor& blocks, const std::vector<float>& x) {
  for (int64_t g = 0; g < blocks.size() * kIntGroups; ++g) {
    const Group want = ReferenceGroup(&x[static_cast<size_t>(g) * kIntGroup], blocks.dtype());
    const Group got = GroupAt(blocks, g);
    if (got.scale == want.scale && got.codes == want.codes) continue;
    FAIL_CHECK(DtypeName(blocks.dtype())
               << " group " << g << ": scale " << got.scale << ", want " << want.scale);
    return;
  }
}

// Equal bits, or both NaN.
bool SameNumbers(const Tensor& got, const std::vector<float>& want) {
  Tensor rounded(got.dtype(), got.size());
  for (int64_t i = 0; i < got.size(); ++i) rounded.Set(i, want[static_cast<size_t>(i)]);
  for (int64_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(rounded[i])) continue;
    if (got[i] != rounded[i]) return false;
  }
  return true;
}

TEST_CASE("int blocks: every byte, and numbers within half a step") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  const int64_t n = 300 * kIntBlock;
  for (const Dtype kind : kKinds) {
    for (const Dtype dtype : FloatDtypes()) {
      CAPTURE(DtypeName(kind));
      CAPTURE(DtypeName(dtype));
      // Groups of their own magnitudes, which all dtypes have.
      Tensor source(dtype, n);
      double std = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (i % kIntGroup == 0) std = std::exp2(static_cast<double>(rng.Below(14)) - 10);
        source.Set(i, rng.Normal(std));
      }
      const std::vector<float> x = FloatsOf(source);
      Tensor blocks = QuantizeInt(bench, source, kind);
      CheckGroups(blocks, x);
      const std::vector<float> numbers = Numbers(blocks);
      double worst = 0;  // in steps
      for (size_t i = 0; i < x.size(); ++i) {
        const float scale = GroupAt(blocks, static_cast<int64_t>(i / kIntGroup)).scale;
        worst =
            std::max(worst, std::abs(static_cast<double>(x[i]) - static_cast<double>(numbers[i])) /
                                static_cast<double>(scale));
      }
      CHECK(worst <= 0.5 + 1e-4);
      CHECK(worst > 0.49);
      for (const Dtype to : FloatDtypes()) {
        Tensor back(to, n);
        bench.Run(KernelId::kConvert, {n}, {&blocks, &back});
        CHECK(SameNumbers(back, numbers));
      }
    }
  }
}

TEST_CASE("int blocks: zeros, ties, the smallest and the largest numbers") {
  Bench bench(1);
  for (const Dtype kind : kKinds) {
    CAPTURE(DtypeName(kind));
    const auto largest = static_cast<float>(Largest(kind));
    Tensor source(Dtype::kF32, kIntBlock), back(Dtype::kF32, kIntBlock);
    for (int i = 0; i < kIntGroup; ++i) {
      source.Set(i, i % 2 == 0 ? 0.0 : -0.0);
      // Steps of 1: halves go to the even neighbour.
      const auto tie = static_cast<double>(i % Largest(kind)) + 0.5;
      source.Set(kIntGroup + i, i == 0 ? static_cast<double>(largest) : i % 2 == 0 ? tie : -tie);
      source.Set(2 * kIntGroup + i, std::ldexp(static_cast<double>(i - 128), -149));
      source.Set(3 * kIntGroup + i, i % 2 == 0 ? 3.4e38 : -3.4e38);
    }
    Tensor blocks = QuantizeInt(bench, source, kind);
    CheckGroups(blocks, FloatsOf(source));
    bench.Run(KernelId::kConvert, {kIntBlock}, {&blocks, &back});
    for (int i = 0; i < kIntGroup; ++i) {
      CHECK(back[i] == 0);
      const double x = source[kIntGroup + i];
      CHECK(back[kIntGroup + i] == (i == 0 ? x : 2 * std::nearbyint(x / 2)));
      CHECK(std::abs(back[2 * kIntGroup + i] - source[2 * kIntGroup + i]) <= 0x1p-127);
      CHECK(back[3 * kIntGroup + i] / source[3 * kIntGroup + i] == doctest::Approx(1));
    }
  }
}

TEST_CASE("int blocks: what is not finite stays so, in its group alone") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (const Dtype kind : kKinds) {
    for (const Dtype dtype : FloatDtypes()) {
      for (const float odd : {kIntInfinity, -kIntInfinity, std::numeric_limits<float>::quiet_NaN(),
                              -std::numeric_limits<float>::quiet_NaN()}) {
        Tensor source = Tensor::Random(rng, dtype, 2 * kIntBlock);
        const int64_t at = rng.Below(source.size());
        source.Set(at, static_cast<double>(odd));
        Tensor blocks = QuantizeInt(bench, source, kind);
        CheckGroups(blocks, FloatsOf(source));
        // Through a sum, blocks again, and to a float.
        Tensor parts(kind, 4), sum(kind, 2), back(dtype, 2 * kIntBlock);
        std::memcpy(parts.arg().data, blocks.arg().data, blocks.arg().bytes);
        std::memcpy(parts.arg().as<char>() + blocks.arg().bytes, blocks.arg().data,
                    blocks.arg().bytes);
        bench.Run(KernelId::kSumParts, {2 * kIntBlock, 2}, {&parts, &sum});
        bench.Run(KernelId::kConvert, {2 * kIntBlock}, {&sum, &back});
        for (int64_t i = 0; i < back.size(); ++i) {
          CHECK(std::isfinite(back[i]) == (i / kIntGroup != at / kIntGroup));
        }
      }
    }
  }
}

TEST_CASE("sum_parts: in rank order in fp32, to floats, added to floats, and to blocks") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  const int64_t n = 37 * kIntBlock;
  for (const Dtype kind : kKinds) {
    for (const int64_t parts : {1, 2, 3, 8}) {
      CAPTURE(DtypeName(kind));
      CAPTURE(parts);
      Tensor source = Tensor::Random(rng, Dtype::kBF16, n * parts, 0.02);
      Tensor blocks = QuantizeInt(bench, source, kind);
      const std::vector<float> numbers = Numbers(blocks);
      std::vector<float> sums(static_cast<size_t>(n));
      Doubles exact(sums.size()), step(sums.size());
      for (size_t i = 0; i < sums.size(); ++i) {
        for (int64_t p = 0; p < parts; ++p) {
          const auto at = static_cast<size_t>(p * n) + i;
          sums[i] = p == 0 ? numbers[at] : sums[i] + numbers[at];
          exact[i] += source[static_cast<int64_t>(at)];
          step[i] +=
              static_cast<double>(GroupAt(blocks, static_cast<int64_t>(at / kIntGroup)).scale);
        }
      }
      for (size_t i = 0; i < sums.size(); ++i) {
        REQUIRE(std::abs(static_cast<double>(sums[i]) - exact[i]) <= (0.5 + 1e-4) * step[i]);
      }
      for (const Dtype to : FloatDtypes()) {
        CAPTURE(DtypeName(to));
        Tensor sum(to, n);
        bench.Run(KernelId::kSumParts, {n, parts}, {&blocks, &sum});
        CHECK(SameNumbers(sum, sums));
        Tensor added = Tensor::Random(rng, to, n, 0.02);
        std::vector<float> want;
        for (int64_t i = 0; i < n; ++i) {
          want.push_back(static_cast<float>(added[i]) + sums[static_cast<size_t>(i)]);
        }
        bench.Run(KernelId::kSumParts, {n, parts}, {&blocks, &added}, kAccumulate);
        CHECK(SameNumbers(added, want));
      }
      Tensor again(kind, n / kIntBlock);
      bench.Run(KernelId::kSumParts, {n, parts}, {&blocks, &again});
      CheckGroups(again, sums);
    }
  }
}

TEST_CASE("int blocks: launches that there are not") {
  Bench bench(1);
  const int64_t n = 2 * kIntBlock;
  Tensor fp32(Dtype::kF32, n), fp64(Dtype::kF64, n), eight(Dtype::kInt8Blocks, 2);
  Tensor four(Dtype::kInt4Blocks, 2), few(Dtype::kInt4Blocks, 1), nf4(Dtype::kNf4, 1);
  const auto run = [&](KernelId id, Tensor& src, Tensor& dst, int64_t count, int flags = 0) {
    bench.Run(id, {count, 1}, {&src, &dst}, flags);
  };
  for (const KernelId id : {KernelId::kConvert, KernelId::kSumParts}) {
    CHECK_THROWS_AS(run(id, eight, fp64, n), CheckFailure);
    CHECK_THROWS_AS(run(id, four, eight, n), CheckFailure);
    CHECK_THROWS_AS(run(id, eight, nf4, n), CheckFailure);
    CHECK_THROWS_AS(run(id, four, fp32, n - 64), CheckFailure);
    CHECK_THROWS_AS(run(id, few, fp32, n), CheckFailure);
    run(id, eight, fp32, n);
  }
  CHECK_THROWS_AS(run(KernelId::kConvert, fp32, four, n, kAccumulate), CheckFailure);
  CHECK_THROWS_AS(run(KernelId::kConvert, four, fp32, n, kAccumulate), CheckFailure);
  CHECK_THROWS_AS(run(KernelId::kConvert, four, four, n), CheckFailure);
  CHECK_THROWS_AS(run(KernelId::kConvert, fp32, few, n), CheckFailure);
  CHECK_THROWS_AS(run(KernelId::kSumParts, fp32, fp32, n), CheckFailure);
  CHECK_THROWS_AS(run(KernelId::kSumParts, four, four, n, kAccumulate), CheckFailure);
  CHECK_THROWS_AS(bench.Run(KernelId::kSumParts, {n, 0}, {&four, &fp32}), CheckFailure);
  CHECK_THROWS_AS(bench.Run(KernelId::kSumParts, {n, 2}, {&four, &fp32}), CheckFailure);
}

}  // namespace
}  // namespace zeroplan::kernel_test
