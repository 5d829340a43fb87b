// NF4 and back, bit by bit against loops over the format's definition (core/base/nf4.h).
#include "executor/kernels/nf4.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/base/error.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

using Nf4Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// How many of the middles lie below x.
template <size_t n>
uint8_t CountBelow(const std::array<float, n>& middles, float x) {
  int count = 0;
  for (const float middle : middles) count += x > middle ? 1 : 0;
  return static_cast<uint8_t>(count);
}

uint8_t CodeOf(const Nf4Block& block, int i) {
  const uint8_t byte = block.codes[i / 2];
  return i % 2 == 0 ? byte >> 4 : byte & 15;
}

// The block of x[first, ...).
Nf4Block ReferenceBlock(const Nf4Floats& x, size_t first) {
  Nf4Block block{};
  const auto at = [&](int i) {
    const size_t index = first + static_cast<size_t>(i);
    return index < x.size() ? x[index] : 0.0f;
  };
  float maxima[kNf4Groups];
  double sum = 0;
  int count = 0;
  for (int g = 0; g < kNf4Groups; ++g) {
    float& m = maxima[g];
    m = 0;
    for (int i = 0; i < kNf4Group; ++i) m = std::fmax(m, std::fabs(at(g * kNf4Group + i)));
    for (int i = g * kNf4Group; i < (g + 1) * kNf4Group; ++i) {
      const uint8_t code = m == 0 ? kNf4Zero : CountBelow(kNf4Middles, at(i) * (1.0f / m));
      block.codes[i / 2] |= static_cast<uint8_t>(i % 2 == 0 ? code << 4 : code);
    }
    if (m != 0) {
      sum += static_cast<double>(m);
      ++count;
    }
  }
  if (count > 0) block.offset = static_cast<float>(sum / count);
  for (const float m : maxima) {
    if (m != 0) block.scale = std::fmax(block.scale, std::fabs(m - block.offset));
  }
  for (int g = 0; g < kNf4Groups; ++g) {
    const float m = maxima[g];
    block.maxima[g] = m == 0 || block.scale == 0
                          ? 127
                          : CountBelow(kNf4MaximumMiddles, (m - block.offset) * (1 / block.scale));
  }
  return block;
}

float MaximumOf(const Nf4Block& block, int g) {
  volatile float product = kNf4MaximumValues[block.maxima[g]] * block.scale;  // rounded by itself
  return product + block.offset;
}

float ElementOf(const Nf4Block& block, int i) {
  return kNf4Values[CodeOf(block, i)] * MaximumOf(block, i / kNf4Group);
}

Tensor TensorOf(const Nf4Floats& x) {
  Tensor t(Dtype::kF32, static_cast<int64_t>(x.size()));
  std::memcpy(t.arg().data, x.data(), x.size() * sizeof(float));
  return t;
}

std::vector<Nf4Block> BlocksOf(Tensor& t) {
  std::vector<Nf4Block> blocks(static_cast<size_t>(t.size()));
  std::memcpy(blocks.data(), t.arg().data, blocks.size() * sizeof(Nf4Block));
  return blocks;
}

// The kernel's blocks, over bytes of something else.
Tensor Quantize(Bench& bench, Tensor& x) {
  Tensor blocks(Dtype::kNf4, Nf4Blocks(x.size()));
  std::memset(blocks.arg().data, 0x5a, blocks.arg().bytes);
  bench.Run(KernelId::kConvert, {x.size()}, {&x, &blocks});
  return blocks;
}

// The first element at which two blocks differ, for a failure's message; they differ.
std::string Difference(const Nf4Block& got, const Nf4Block& want) {
  for (int i = 0; i < kNf4Block; ++i) {
    if (CodeOf(got, i) != CodeOf(want, i)) {
      return fmt::format("code {}: got {}, want {}", i, CodeOf(got, i), CodeOf(want, i));
    }
  }
  for (int g = 0; g < kNf4Groups; ++g) {
    if (got.maxima[g] != want.maxima[g]) {
      return fmt::format("maximum {}: got {}, want {}", g, got.maxima[g], want.maxima[g]);
    }
  }
  return fmt::format("scale {} offset {} unused {} {}, want {} {}", got.scale, got.offset,
                     got.unused[0], got.unused[1], want.scale, want.offset);
}

// Quantizes, compares every byte, dequantizes to all dtypes, compares every bit.
std::vector<Nf4Block> CheckNf4Bytes(Bench& bench, const Nf4Floats& x, const std::string& what) {
  CAPTURE(what);
  Tensor source = TensorOf(x);
  Tensor made = Quantize(bench, source);
  const std::vector<Nf4Block> blocks = BlocksOf(made);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Nf4Block want = ReferenceBlock(x, b * kNf4Block);
    if (std::memcmp(&blocks[b], &want, sizeof(want)) != 0) {
      FAIL_CHECK("block " << b << ": " << Difference(blocks[b], want));
      return blocks;
    }
  }
  const auto n = static_cast<int64_t>(x.size());
  for (const Dtype dtype : FloatDtypes()) {
    Tensor got(dtype, n), want(dtype, n);
    bench.Run(KernelId::kConvert, {n}, {&made, &got});
    for (int64_t i = 0; i < n; ++i) {
      const float value =
          ElementOf(blocks[static_cast<size_t>(i / kNf4Block)], static_cast<int>(i % kNf4Block));
      WriteScalar(dtype, want.arg().data, i, value);
    }
    CAPTURE(DtypeName(dtype));
    CHECK(got == want);
  }
  return blocks;
}

Nf4Floats NormalFloats(Rng& rng, int64_t n, double std) {
  Nf4Floats x(static_cast<size_t>(n));
  for (float& value : x) value = static_cast<float>(rng.Normal(std));
  return x;
}

TEST_CASE("nf4: the values of codes and of maxima") {
  CHECK(kNf4Values.front() == -1);
  CHECK(kNf4Values[kNf4Zero] == 0);
  CHECK(kNf4Values.back() == 1);
  CHECK(kNf4MaximumValues.front() == -0.99296875f);
  CHECK(kNf4MaximumValues[126] == -1e-6f * 0.55f);
  CHECK(kNf4MaximumValues[127] == 0);
  CHECK(kNf4MaximumValues[128] == 1e-6f * 0.55f);
  CHECK(kNf4MaximumValues[254] == 0.99296875f);
  CHECK(kNf4MaximumValues.back() == 1);
  for (size_t i = 0; i + 1 < kNf4Values.size(); ++i) {
    CHECK(kNf4Values[i] < kNf4Middles[i]);
    CHECK(kNf4Middles[i] < kNf4Values[i + 1]);
  }
  for (size_t i = 0; i + 1 < kNf4MaximumValues.size(); ++i) {
    CHECK(kNf4MaximumValues[i] < kNf4MaximumMiddles[i]);
    CHECK(kNf4MaximumMiddles[i] < kNf4MaximumValues[i + 1]);
  }
}

TEST_CASE("nf4: a matrix of normal numbers, every byte") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  CheckNf4Bytes(bench, NormalFloats(rng, 4096 * 1024, 0.02), "4096 x 1024");
  // Of rows of other lengths, and of other sizes.
  CheckNf4Bytes(bench, NormalFloats(rng, 1000 * 333, 1e-30), "small");
  CheckNf4Bytes(bench, NormalFloats(rng, 777 * 128, 1e30), "large");
}

TEST_CASE("nf4: lengths that end inside a byte, a group, a block") {
  ZEROPLAN_TEST_RNG(rng);
  for (const int threads : {1, 3}) {
    Bench bench(threads);
    for (const int64_t n :
         {1, 2, 63, 64, 65, 1023, 1025, 8191, 8193, 16383, 16384, 16385, 40'007}) {
      const Nf4Floats x = NormalFloats(rng, n, 0.02);
      const std::vector<Nf4Block> blocks = CheckNf4Bytes(bench, x, fmt::format("n = {}", n));
      const auto last = static_cast<int>((n - 1) % kNf4Block);
      for (int i = last + 1; i < kNf4Block; ++i) REQUIRE(CodeOf(blocks.back(), i) == kNf4Zero);
    }
  }
}

TEST_CASE("nf4: a value at every middle and beside it") {
  Bench bench(1);
  Nf4Floats x;
  for (const float middle : kNf4Middles) {
    for (const float value :
         {std::nextafter(middle, -1.0f), middle, std::nextafter(middle, 1.0f)}) {
      x.push_back(value);
    }
  }
  x.push_back(1);  // the group's maximum
  const std::vector<Nf4Block> blocks = CheckNf4Bytes(bench, x, "middles");
  for (int i = 0; i < 15; ++i) {
    CHECK(CodeOf(blocks[0], 3 * i) == i);
    CHECK(CodeOf(blocks[0], 3 * i + 1) == i);  // a middle itself goes down
    CHECK(CodeOf(blocks[0], 3 * i + 2) == i + 1);
  }
  CHECK(CodeOf(blocks[0], 45) == 15);
}

TEST_CASE("nf4: zeros") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  const std::vector<Nf4Block> zeros = CheckNf4Bytes(bench, Nf4Floats(20'000, 0.0f), "all");
  for (const Nf4Block& block : zeros) {
    CHECK(block.scale == 0);
    CHECK(block.offset == 0);
  }
  CheckNf4Bytes(bench, Nf4Floats(100, -0.0f), "negative");

  // Groups of zeros change nothing for the others, and stay 0.
  Nf4Floats x = NormalFloats(rng, kNf4Block, 0.02);
  std::fill_n(x.begin() + 5 * kNf4Group, kNf4Group, 0.0f);
  std::fill_n(x.begin() + 255 * kNf4Group, kNf4Group, -0.0f);
  const std::vector<Nf4Block> some = CheckNf4Bytes(bench, x, "some");
  Tensor blocks(Dtype::kNf4, 1), back(Dtype::kF32, kNf4Block);
  std::memcpy(blocks.arg().data, some.data(), sizeof(Nf4Block));
  bench.Run(KernelId::kConvert, {kNf4Block}, {&blocks, &back});
  double mean = 0;
  for (int g = 0; g < kNf4Groups; ++g) {
    float m = 0;
    for (int i = 0; i < kNf4Group; ++i) {
      const auto at = static_cast<size_t>(g * kNf4Group + i);
      m = std::max(m, std::fabs(x[at]));
      if (g == 5 || g == 255) CHECK(back[static_cast<int64_t>(at)] == 0);
    }
    mean += static_cast<double>(m) / 254;
  }
  CHECK(static_cast<double>(some[0].offset) == doctest::Approx(mean));
}

TEST_CASE("nf4: maxima that are all alike, an outlier, numbers that are not normal") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  // One maximum, or one for all: nothing is left beside the mean, and it comes back as it was.
  for (const int64_t n : {int64_t{50}, int64_t{kNf4Block}}) {
    Nf4Floats x = NormalFloats(rng, n, 0.02);
    for (float& value : x) value = std::clamp(value, -0.01f, 0.01f);
    for (size_t i = 0; i < x.size(); i += kNf4Group) x[i] = -0.01f;
    const std::vector<Nf4Block> blocks = CheckNf4Bytes(bench, x, fmt::format("alike, n = {}", n));
    CHECK(blocks[0].scale == 0);
    CHECK(blocks[0].offset == 0.01f);
  }
  Nf4Floats outlier = NormalFloats(rng, 2 * kNf4Block, 0.02);
  outlier[9'999] = -3e38f;
  const std::vector<Nf4Block> blocks = CheckNf4Bytes(bench, outlier, "outlier");
  CHECK(CodeOf(blocks[0], 9'999) == 0);
  CHECK(CodeOf(blocks[0], 9'998) == kNf4Zero);

  // Numbers whose reciprocal is infinite, and some beside that are normal; sums whose order
  // matters.
  CheckNf4Bytes(bench, NormalFloats(rng, kNf4Block, 1e-39), "denormal");
  CheckNf4Bytes(bench, NormalFloats(rng, kNf4Block, 1e-44), "last places");
  CheckNf4Bytes(bench, Nf4Floats(3, std::numeric_limits<float>::denorm_min()), "smallest");
  Nf4Floats wide(kNf4Block);
  for (float& value : wide) {
    value = static_cast<float>(rng.Normal() * std::exp2(static_cast<double>(rng.Below(240)) - 140));
  }
  CheckNf4Bytes(bench, wide, "all powers");
}

// Half the widest gap between values of codes, as a share of the maximum; and what the maximum was
// off by itself, at most half the widest gap of its own values times their scale.
TEST_CASE("nf4: what comes back is near") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  const int64_t n = 300'001;
  const Nf4Floats x = NormalFloats(rng, n, 0.02);
  Tensor source = TensorOf(x), blocks = Quantize(bench, source), back(Dtype::kF32, n);
  bench.Run(KernelId::kConvert, {n}, {&blocks, &back});
  const auto widest = [](const auto& values) {
    float gap = 0;
    for (size_t i = 0; i + 1 < values.size(); ++i) gap = std::max(gap, values[i + 1] - values[i]);
    return static_cast<double>(gap);
  };
  const double gap = widest(kNf4Values), maximum_gap = widest(kNf4MaximumValues);
  CHECK(gap < 0.31);
  CHECK(maximum_gap < 0.0142);
  const std::vector<Nf4Block> made = BlocksOf(blocks);
  double squares = 0;
  for (int64_t group = 0; group < n; group += kNf4Group) {
    const int64_t end = std::min<int64_t>(n, group + kNf4Group);
    double maximum = 0;
    for (int64_t i = group; i < end; ++i) maximum = std::max(maximum, std::abs(source[i]));
    const Nf4Block& block = made[static_cast<size_t>(group / kNf4Block)];
    const auto got =
        static_cast<double>(MaximumOf(block, static_cast<int>(group % kNf4Block / kNf4Group)));
    const double off = std::abs(got - maximum);
    const double rounding = 0x1p-22 * maximum;  // of what is left beside the mean, and of the sum
    REQUIRE(off <= maximum_gap / 2 * static_cast<double>(block.scale) + rounding);
    for (int64_t i = group; i < end; ++i) {
      const double error = std::abs(back[i] - source[i]);
      REQUIRE(error <= gap / 2 * maximum * (1 + 1e-5) + off);
      squares += error * error;
    }
  }
  // Of normal numbers some nine in a hundred are lost.
  CHECK(std::sqrt(squares / static_cast<double>(n)) < 0.1 * 0.02);
}

TEST_CASE("nf4: infinity and NaN harm nothing but their block") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  Nf4Floats x = NormalFloats(rng, 3 * kNf4Block, 0.02);
  x[17] = kNan;
  std::fill_n(x.begin() + 10 * kNf4Group, kNf4Group, kNan);
  x[kNf4Block + 100] = kInfinity;
  x[kNf4Block + 101] = -kInfinity;
  x[kNf4Block + 200] = kNan;
  Tensor source = TensorOf(x), blocks = Quantize(bench, source);
  const std::vector<Nf4Block> made = BlocksOf(blocks);
  for (size_t b = 0; b < 3; ++b) {
    const Nf4Block want = ReferenceBlock(x, b * kNf4Block);
    if (std::memcmp(&made[b], &want, sizeof(want)) != 0) {
      FAIL_CHECK("block " << b << ": " << Difference(made[b], want));
    }
  }
  CHECK(std::isfinite(made[0].offset));
  CHECK(made[1].offset == kInfinity);
  const auto n = static_cast<int64_t>(x.size());
  for (const Dtype dtype : FloatDtypes()) {
    Tensor back(dtype, n);
    bench.Run(KernelId::kConvert, {n}, {&blocks, &back});
    for (int64_t i = 0; i < n; ++i) REQUIRE(std::isfinite(back[i]) == (i / kNf4Block != 1));
  }
  // Blocks that are no one's.
  for (int64_t i = 0; i < static_cast<int64_t>(blocks.arg().bytes); ++i) {
    blocks.arg().as<char>()[i] = static_cast<char>(rng.Below(256));
  }
  Tensor back(Dtype::kBF16, n);
  bench.Run(KernelId::kConvert, {n}, {&blocks, &back});
}

TEST_CASE("nf4: launches that there are not") {
  Bench bench(1);
  Tensor fp32(Dtype::kF32, 20'000), bf16(Dtype::kBF16, 20'000), fp64(Dtype::kF64, 20'000);
  Tensor blocks(Dtype::kNf4, 2), other(Dtype::kNf4, 2), few(Dtype::kNf4, 1);
  const auto run = [&](Tensor& src, Tensor& dst, int flags = 0) {
    bench.Run(KernelId::kConvert, {20'000}, {&src, &dst}, flags);
  };
  CHECK_THROWS_AS(run(bf16, blocks), CheckFailure);
  CHECK_THROWS_AS(run(blocks, fp64), CheckFailure);
  CHECK_THROWS_AS(run(blocks, other), CheckFailure);
  CHECK_THROWS_AS(run(fp32, blocks, kAccumulate), CheckFailure);
  CHECK_THROWS_AS(run(blocks, fp32, kAccumulate), CheckFailure);
  CHECK_THROWS_AS(run(fp32, few), CheckFailure);
  CHECK_THROWS_AS(run(few, fp32), CheckFailure);
  run(fp32, blocks);
}

#ifdef ZEROPLAN_TEST_CUDA
// Convert, from or to the second float of an argument on: at no multiple of 16 bytes.
void ConvertFromSecond(const KernelCall& call) {
  std::vector<KernelArg> args(call.args.begin(), call.args.end());
  for (KernelArg& arg : args) {
    if (arg.dtype == Dtype::kNf4) continue;
    arg.data = arg.as<char>() + DtypeBytes(arg.dtype);
    arg.bytes -= DtypeBytes(arg.dtype);
  }
  const KernelCall shifted{call.id, call.flags, call.dims, args, call.context, call.scalars};
  CudaKernels().rows[static_cast<size_t>(call.id)](shifted);
}

TEST_CASE("nf4: floats that are not aligned") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  const int64_t n = 40'007;
  const Nf4Floats x = NormalFloats(rng, n + 1, 0.02);
  Tensor source = TensorOf(x), blocks(Dtype::kNf4, Nf4Blocks(n));
  bench.Run(KernelId::kConvert, {n}, {&source, &blocks}, 0, ConvertFromSecond);
  Tensor rest = TensorOf({x.begin() + 1, x.end()});
  CHECK(blocks == Quantize(bench, rest));
  for (const Dtype dtype : FloatDtypes()) {
    Tensor want(dtype, n), got(dtype, n + 1);
    bench.Run(KernelId::kConvert, {n}, {&blocks, &want});
    got.Set(0, 7);
    bench.Run(KernelId::kConvert, {n}, {&blocks, &got}, 0, ConvertFromSecond);
    CHECK(got[0] == 7);
    CHECK(std::memcmp(got.arg().as<char>() + DtypeBytes(dtype), want.arg().data,
                      want.arg().bytes) == 0);
  }
}
#endif

}  // namespace
}  // namespace zeroplan::kernel_test
