// Products of eight bits and what makes their copies, against plain loops. Copies and scales are
// bit by bit what core/base/fp8.h says. Legend: M rows, K columns or the contraction, N columns of
// a product.
#include "core/base/fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "tests/executor/kernels/kernel_harness.h"
#include "tests/executor/kernels/unit_fixture.h"

namespace zeroplan::kernel_test {
namespace {

constexpr Dtype kEightBits[] = {Dtype::kE4M3, Dtype::kE5M2};

float LargestNumber(Dtype kind) { return kind == Dtype::kE5M2 ? kLargestE5M2 : kLargestE4M3; }
uint8_t Code(Dtype kind, float x) { return kind == Dtype::kE5M2 ? ToE5M2(x) : ToE4M3(x); }
double Number(Dtype kind, uint8_t code) {
  return static_cast<double>(kind == Dtype::kE5M2 ? FromE5M2(code) : FromE4M3(code));
}
float FloatAt(const Tensor& x, int64_t i) { return static_cast<float>(x[i]); }
uint32_t BitsAt(const Tensor& x, int64_t i) { return std::bit_cast<uint32_t>(FloatAt(x, i)); }

// How many scales a copy of [rows, cols] has, and which is that of an element.
int64_t CountScales(int64_t block_rows, int64_t rows, int64_t cols) {
  if (block_rows == 0) return 1;
  return block_rows == 1 ? cols / kFp8Block * rows : rows / kFp8Block * Fp8BlockScalesRow(cols);
}
int64_t ScaleAt(int64_t block_rows, int64_t rows, int64_t cols, int64_t row, int64_t col) {
  if (block_rows == 0) return 0;
  if (block_rows == 1) return col / kFp8Block * rows + row;
  return row / kFp8Block * Fp8BlockScalesRow(cols) + col / kFp8Block;
}

// A copy of x_MK by plain loops.
struct PlainCopy {
  std::vector<uint8_t> codes;
  std::vector<float> scales;  // NaN where no element has it

  // `amax`: of one scale for all.
  PlainCopy(const Tensor& x, Dtype kind, int64_t M, int64_t K, bool transposed, int64_t block_rows,
            float amax) {
    const int64_t rows = transposed ? K : M, cols = transposed ? M : K;
    const auto at = [&](int64_t r, int64_t c) {
      return FloatAt(x, transposed ? c * K + r : r * K + c);
    };
    codes.resize(static_cast<size_t>(M * K));
    const auto count = static_cast<size_t>(CountScales(block_rows, rows, cols));
    std::vector<uint32_t> largest(count, block_rows == 0 ? std::bit_cast<uint32_t>(amax) : 0);
    std::vector<bool> used(count, false);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto s = static_cast<size_t>(ScaleAt(block_rows, rows, cols, r, c));
        used[s] = true;
        if (block_rows > 0) largest[s] = std::max(largest[s], MagnitudeBits(at(r, c)));
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const auto s = static_cast<size_t>(ScaleAt(block_rows, rows, cols, r, c));
        const float of_block = std::bit_cast<float>(largest[s]);
        codes[static_cast<size_t>(r * cols + c)] =
            Code(kind, at(r, c) * Fp8InverseScale(of_block, LargestNumber(kind)));
      }
    }
    for (size_t s = 0; s < count; ++s) {
      scales.push_back(used[s] ? Fp8Scale(std::bit_cast<float>(largest[s]), LargestNumber(kind))
                               : std::numeric_limits<float>::quiet_NaN());
    }
  }
};

void CheckCopy(Tensor& codes, Tensor* scales, const PlainCopy& want, const char* what) {
  CAPTURE(what);
  const auto* got = codes.arg().as<uint8_t>();
  REQUIRE(static_cast<size_t>(codes.size()) == want.codes.size());
  CHECK(std::equal(want.codes.begin(), want.codes.end(), got));
  if (scales == nullptr) return;
  REQUIRE(static_cast<size_t>(scales->size()) == want.scales.size());
  for (int64_t s = 0; s < scales->size(); ++s) {
    const float wanted = want.scales[static_cast<size_t>(s)];
    if (std::isnan(wanted)) continue;  // of no element, or of NaNs
    CAPTURE(s);
    REQUIRE(FloatAt(*scales, s) == wanted);
  }
}

// Normal numbers with what is seldom among them.
Tensor WithOddities(Rng& rng, Dtype dtype, int64_t n, bool infinite) {
  Tensor x = Tensor::Random(rng, dtype, n);
  x.Set(rng.Below(n), 0.0);
  x.Set(rng.Below(n), -0.0);
  x.Set(rng.Below(n), 1e-30);
  x.Set(rng.Below(n), -57.0);
  if (infinite) x.Set(rng.Below(n), -std::numeric_limits<double>::infinity());
  return x;
}

uint32_t LargestBits(const Tensor& x) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < x.size(); ++i) largest = std::max(largest, MagnitudeBits(FloatAt(x, i)));
  return largest;
}

TEST_CASE("largest magnitude: raised from what is there, a NaN above all") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  for (Dtype dtype : FloatDtypes()) {
    for (const int64_t n : {1, 7, 16, 4099, 70'001}) {
      CAPTURE(n);
      Tensor x = WithOddities(rng, dtype, n, false), amax(Dtype::kF32, 1);
      bench.Run(KernelId::kLargestMagnitude, {n}, {&x, &amax});
      CHECK(BitsAt(amax, 0) == LargestBits(x));
      // Once more: nothing is larger. What is larger stays.
      bench.Run(KernelId::kLargestMagnitude, {n}, {&x, &amax});
      CHECK(BitsAt(amax, 0) == LargestBits(x));
      amax.Set(0, 1e6);
      bench.Run(KernelId::kLargestMagnitude, {n}, {&x, &amax});
      CHECK(FloatAt(amax, 0) == 1e6f);
      x.Set(n / 2, -std::numeric_limits<double>::infinity());
      bench.Run(KernelId::kLargestMagnitude, {n}, {&x, &amax});
      CHECK(std::isinf(FloatAt(amax, 0)));
      x.Set(n / 3, std::numeric_limits<double>::quiet_NaN());
      bench.Run(KernelId::kLargestMagnitude, {n}, {&x, &amax});
      CHECK(std::isnan(FloatAt(amax, 0)));
    }
  }
}

struct Shape2 {
  int64_t M, K;
};

TEST_CASE("quantize: codes and scales of either copy and of both, by one scale or by blocks") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  const std::vector<Shape2> any = {{16, 16}, {32, 48}, {16, 2064}, {144, 80}},
                            blocks = {{128, 128}, {256, 384}, {128, 640}};
  for (const int64_t rows : {int64_t{0}, int64_t{1}, kFp8Block}) {
    for (const auto& [M, K] : rows == 0 ? any : blocks) {
      for (Dtype dtype : FloatDtypes()) {
        for (Dtype kind : kEightBits) {
          for (const bool infinite : {false, true}) {
            CAPTURE(rows);
            CAPTURE(M);
            CAPTURE(K);
            CAPTURE(DtypeName(dtype));
            CAPTURE(DtypeName(kind));
            CAPTURE(infinite);
            Tensor x = WithOddities(rng, dtype, M * K, infinite), amax(Dtype::kF32, 1);
            const float largest = std::bit_cast<float>(LargestBits(x));
            amax.Set(0, static_cast<double>(largest));
            const PlainCopy plain(x, kind, M, K, false, rows, largest);
            const PlainCopy turned(x, kind, M, K, true, rows, largest);
            for (int which = 1; which <= 3; ++which) {
              CAPTURE(which);
              Tensor q(kind, M * K), qt(kind, M * K);
              Tensor scale(Dtype::kF32, CountScales(rows, M, K));
              Tensor scale_t(Dtype::kF32, CountScales(rows, K, M));
              const bool has_q = (which & 1) != 0, has_qt = (which & 2) != 0;
              // One scale serves both copies.
              const bool own_scale = has_q && (rows > 0 || !has_qt);
              bench.Run(KernelId::kQuantize, {M, K, rows},
                        {&x, rows == 0 ? &amax : nullptr, has_qt ? &qt : nullptr,
                         has_qt ? &scale_t : nullptr, has_q ? &q : nullptr,
                         own_scale ? &scale : nullptr});
              if (has_q) CheckCopy(q, own_scale ? &scale : nullptr, plain, "q");
              if (has_qt) CheckCopy(qt, &scale_t, turned, "qt");
            }
          }
        }
      }
    }
  }
}

TEST_CASE("quantize: eight bits are transposed as they are") {
  Bench bench(3);
  for (const auto& [M, K] : std::vector<Shape2>{{16, 16}, {48, 32}, {128, 272}}) {
    for (Dtype kind : kEightBits) {
      Tensor x(kind, M * K), qt(kind, M * K);
      for (int64_t i = 0; i < M * K; ++i) x.arg().as<uint8_t>()[i] = static_cast<uint8_t>(i * 7);
      bench.Run(KernelId::kQuantize, {M, K, 0}, {&x, nullptr, &qt});
      bool same = true;
      for (int64_t i = 0; i < M * K; ++i) {
        const uint8_t want = x.arg().as<uint8_t>()[i];  // NaNs of all codes too
        same = same && qt.arg().as<uint8_t>()[i % K * M + i / K] == want;
      }
      CHECK(same);
    }
  }
}

TEST_CASE("quantize: nothing, and what is not a number") {
  Bench bench(1);
  const int64_t M = 16, K = 32;
  for (Dtype kind : kEightBits) {
    Tensor x(Dtype::kF32, M * K), amax(Dtype::kF32, 1), q(kind, M * K), scale(Dtype::kF32, 1);
    bench.Run(KernelId::kQuantize, {M, K, 0}, {&x, &amax, nullptr, nullptr, &q, &scale});
    CHECK(q.arg().as<uint8_t>()[5] == 0);
    CHECK(FloatAt(scale, 0) == kLeastFp8Amax / LargestNumber(kind));
    // A NaN makes one of the scale, and so of all products with it.
    x.Set(3, std::numeric_limits<double>::quiet_NaN());
    bench.Run(KernelId::kLargestMagnitude, {M * K}, {&x, &amax});
    bench.Run(KernelId::kQuantize, {M, K, 0}, {&x, &amax, nullptr, nullptr, &q, &scale});
    CHECK(std::isnan(FloatAt(scale, 0)));
    CHECK(std::isnan(Number(kind, q.arg().as<uint8_t>()[3])));
  }
}

// ---- magnitudes that other kernels take along ----

// The kernel gives the same bits with the magnitude and without, and the magnitude is that of what
// it wrote.
void CheckTakenAlong(Bench& bench, KernelId id, const KernelDims& dims, std::vector<Tensor> args,
                     int flags = 0) {
  const KernelRow& row = KernelInfo(id);
  const auto of = static_cast<size_t>(row.magnitude.of);
  CAPTURE(row.name);
  const auto run = [&](std::vector<Tensor>& tensors, Tensor* amax) {
    std::vector<Tensor*> pointers;
    for (Tensor& tensor : tensors) pointers.push_back(&tensor);
    if (amax != nullptr) {
      pointers.resize(static_cast<size_t>(row.magnitude.argument), nullptr);  // no workspace
      pointers.push_back(amax);
    }
    bench.Run(id, dims, pointers, flags);
  };
  std::vector<Tensor> without = args, with = args;
  run(without, nullptr);
  Tensor amax(Dtype::kF32, 1);
  run(with, &amax);
  for (size_t i = 0; i < args.size(); ++i) CHECK(without[i] == with[i]);
  CHECK(BitsAt(amax, 0) == LargestBits(with[of]));
  CHECK(BitsAt(amax, 0) > 0);
  amax.Set(0, 1e6);
  with = args;
  run(with, &amax);
  CHECK(FloatAt(amax, 0) == 1e6f);
}

TEST_CASE("norms, GELU and SwiGLU take along the largest magnitude of what they write") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  for (Dtype p : FloatDtypes()) {
    const auto t = [&](int64_t n) { return Tensor::Random(rng, p, n); };
    for (const auto& [M, C] :
         std::vector<Shape2>{{3, 5}, {17, 64}, {70, 130}, {9, 768}, {19, 2056}, {5, 4096}}) {
      CAPTURE(DtypeName(p));
      CAPTURE(M);
      CAPTURE(C);
      const Tensor x = t(M * C), w = t(C);
      Tensor y(p, M * C), stats(Dtype::kF32, 2 * M), rstd(Dtype::kF32, M);
      CheckTakenAlong(bench, KernelId::kLayerNormForward, {M, C}, {x, w, t(C), y, stats});
      CheckTakenAlong(bench, KernelId::kRmsNormForward, {M, C}, {x, w, y, rstd});
      Tensor b = t(C), in = x, weight = w;
      bench.Run(KernelId::kLayerNormForward, {M, C}, {&in, &weight, &b, &y, &stats});
      bench.Run(KernelId::kRmsNormForward, {M, C}, {&in, &weight, &y, &rstd});
      for (const int flags : {0, 0 + kAddToOutput}) {
        CheckTakenAlong(bench, KernelId::kLayerNormBackward, {M, C},
                        {t(M * C), x, w, stats, t(M * C), t(C), t(C)}, flags);
        CheckTakenAlong(bench, KernelId::kRmsNormBackward, {M, C},
                        {t(M * C), x, w, rstd, t(M * C), t(C)}, flags);
      }
      CheckTakenAlong(bench, KernelId::kSwiGluForward, {M, C}, {t(2 * M * C), y});
      CheckTakenAlong(bench, KernelId::kSwiGluBackward, {M, C}, {t(M * C), t(2 * M * C)});
      CheckTakenAlong(bench, KernelId::kGeluForward, {M * C}, {x, y});
      CheckTakenAlong(bench, KernelId::kGeluBackward, {M * C}, {x, t(M * C)});
    }
  }
}

// ---- products ----

// A matrix of eight bits, and its values in double.
struct Matrix8 {
  Tensor codes, scales;
  Doubles values;

  Matrix8(Rng& rng, Dtype kind, int64_t rows, int64_t cols, int64_t block_rows)
      : codes(kind, rows * cols), scales(Dtype::kF32, CountScales(block_rows, rows, cols)) {
    const Tensor x = Tensor::Random(rng, Dtype::kF32, rows * cols);
    const PlainCopy copy(x, kind, rows, cols, false, block_rows,
                         std::bit_cast<float>(LargestBits(x)));
    std::copy(copy.codes.begin(), copy.codes.end(), codes.arg().as<uint8_t>());
    for (int64_t s = 0; s < scales.size(); ++s) {
      scales.Set(s, static_cast<double>(copy.scales[static_cast<size_t>(s)]));
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        values.push_back(Number(kind, copy.codes[static_cast<size_t>(r * cols + c)]) *
                         scales[ScaleAt(block_rows, rows, cols, r, c)]);
      }
    }
  }
};

// Products of two numbers of eight bits are exact in fp32. K of them, added up in fp32 in any
// order, lose at most K * 2^-24 of the sum of magnitudes; scales and what is added besides, a few
// roundings more. Tensor cores align the 32 products of a step and the sum so far to the largest of
// them and drop what lies more than 13 bits behind: of 33 terms at most 2^-8 of the sum of
// magnitudes.
double SumsLose(int64_t K) { return static_cast<double>(K + 8) * 0x1p-24 + (kOnGpu ? 0x1p-8 : 0); }

struct ProductCase {
  int64_t M, K, N, rows_a, rows_b;
  Dtype a, b, y;
  bool accumulate, bias, residual;
};

void CheckProduct(Rng& rng, Bench& bench, const ProductCase& c) {
  CAPTURE(c.M);
  CAPTURE(c.K);
  CAPTURE(c.N);
  CAPTURE(c.rows_a);
  CAPTURE(c.rows_b);
  CAPTURE(DtypeName(c.a));
  CAPTURE(DtypeName(c.b));
  CAPTURE(DtypeName(c.y));
  CAPTURE(c.accumulate);
  CAPTURE(c.bias);
  CAPTURE(c.residual);
  Matrix8 a(rng, c.a, c.M, c.K, c.rows_a), b(rng, c.b, c.N, c.K, c.rows_b);
  Tensor bias = Tensor::Random(rng, c.y, c.N), residual = Tensor::Random(rng, c.y, c.M * c.N);
  Tensor y = Tensor::Random(rng, c.y, c.M * c.N);
  const Doubles before = y.values();
  bench.Run(KernelId::kFp8Matmul, {c.M, c.K, c.N, c.rows_a, c.rows_b, 0},
            {&a.codes, &a.scales, &b.codes, &b.scales, c.bias ? &bias : nullptr,
             c.residual ? &residual : nullptr, &y},
            c.accumulate ? kAccumulate : 0);
  for (int64_t m = 0; m < c.M; ++m) {
    for (int64_t n = 0; n < c.N; ++n) {
      const auto at = static_cast<size_t>(m * c.N + n);
      double want = 0, magnitudes = 0, starts = 0;
      const auto add = [&](double term) {
        want += term;
        magnitudes += std::abs(term);
      };
      for (int64_t k = 0; k < c.K; ++k) {
        add(a.values[static_cast<size_t>(m * c.K + k)] *
            b.values[static_cast<size_t>(n * c.K + k)]);
      }
      if (c.accumulate) add(before[at]);
      if (c.bias) add(bias[n]);
      if (c.residual) add(residual[static_cast<int64_t>(at)]);
      // A GPU may write bias and residual to y before it adds the product to them.
      if (kOnGpu && c.bias) starts += std::abs(bias[n]);
      if (kOnGpu && c.residual) starts += std::abs(residual[static_cast<int64_t>(at)]);
      const double got = y[static_cast<int64_t>(at)];
      if (Close(got, want, c.y, SumsLose(c.K) * magnitudes + RoundOff(c.y) * starts)) continue;
      FAIL_CHECK("y[" << m << "," << n << "]: got " << got << ", want " << want);
      return;
    }
  }
}

TEST_CASE("fp8 products: sums of the numbers that eight bits have, by one scale each") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  const std::vector<std::array<int64_t, 3>> shapes = {
      {16, 16, 16}, {48, 32, 80}, {128, 144, 64}, {16, 656, 304}};
  using enum Dtype;
  for (const auto& [M, K, N] : shapes) {
    for (Dtype y : FloatDtypes()) {
      for (const auto& [a, b] :
           std::vector<std::array<Dtype, 2>>{{kE4M3, kE4M3}, {kE5M2, kE4M3}, {kE4M3, kE5M2}}) {
        for (int what = 0; what < 8; ++what) {
          const bool accumulate = (what & 1) != 0, bias = (what & 2) != 0;
          const bool residual = (what & 4) != 0;
          // Gradients are added to what is there; forward products have bias and residual.
          if (accumulate && (bias || residual)) continue;
          CheckProduct(rng, bench, {M, K, N, 0, 0, a, b, y, accumulate, bias, residual});
        }
      }
    }
  }
}

TEST_CASE("fp8 products: the same by scales of blocks") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  using enum Dtype;
  for (const auto& [M, K, N] :
       std::vector<std::array<int64_t, 3>>{{128, 256, 128}, {256, 128, 384}}) {
    // Forward, of the data, of a weight.
    CheckProduct(rng, bench, {M, K, N, 1, kFp8Block, kE4M3, kE4M3, kBF16, false, true, true});
    CheckProduct(rng, bench, {M, K, N, 1, kFp8Block, kE5M2, kE4M3, kF16, true, false, false});
    CheckProduct(rng, bench, {M, K, N, 1, 1, kE4M3, kE5M2, kF32, true, false, false});
    CheckProduct(rng, bench, {M, K, N, 1, 1, kE4M3, kE4M3, kBF16, false, false, false});
  }
}

TEST_CASE("fp8 products: a scale that is not a number makes nothing else of all") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  const int64_t M = 16, K = 32, N = 16;
  for (const double scale :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Matrix8 a(rng, Dtype::kE4M3, M, K, 0), b(rng, Dtype::kE4M3, N, K, 0);
    Tensor y(Dtype::kBF16, M * N);
    a.scales.Set(0, scale);
    bench.Run(KernelId::kFp8Matmul, {M, K, N, 0, 0, 0},
              {&a.codes, &a.scales, &b.codes, &b.scales, nullptr, nullptr, &y});
    for (int64_t i = 0; i < M * N; ++i) CHECK_FALSE(std::isfinite(y[i]));
  }
}

TEST_CASE("bias backward: sums of columns, written and added") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  for (Dtype dtype : FloatDtypes()) {
    for (Dtype sums : {dtype, Dtype::kF32}) {
      for (const auto& [M, N] : std::vector<Shape2>{{1, 3}, {16, 48}, {301, 130}, {2000, 17}}) {
        for (const bool accumulate : {false, true}) {
          CAPTURE(M);
          CAPTURE(N);
          Tensor dy = Tensor::Random(rng, dtype, M * N), db = Tensor::Random(rng, sums, N);
          Doubles want = db.values(), magnitudes(want.size(), 0.0);
          for (double& value : want) value = accumulate ? value : 0;
          for (size_t n = 0; n < want.size(); ++n) magnitudes[n] = std::abs(want[n]);
          for (int64_t i = 0; i < M * N; ++i) {
            want[static_cast<size_t>(i % N)] += dy[i];
            magnitudes[static_cast<size_t>(i % N)] += std::abs(dy[i]);
          }
          bench.Run(KernelId::kBiasBackward, {M, N}, {&dy, &db}, accumulate ? kAccumulate : 0);
          for (int64_t n = 0; n < N; ++n) {
            // M additions in fp32.
            const double slack =
                static_cast<double>(M) * 0x1p-24 * magnitudes[static_cast<size_t>(n)];
            CHECK(Close(db[n], want[static_cast<size_t>(n)], sums, slack));
          }
        }
      }
    }
  }
}

// ---- shards ----

TEST_CASE("shards: rounded by the magnitudes of whole tensors, wherever a shard begins") {
  ZEROPLAN_TEST_RNG(rng);
  for (const int64_t ranks : {1, 2, 3}) {
    for (Dtype dtype : FloatDtypes()) {
      Bench bench(2);
      bench.program.layout = TestLayout(static_cast<uint64_t>(ranks));
      bench.program.setup.batch.world_size = static_cast<int>(ranks);
      const Unit& unit = bench.program.layout.units[0];
      const auto whole = static_cast<int64_t>(unit.padded_elements);
      const auto n = static_cast<int64_t>(unit.shard_elements);
      const auto tensors = static_cast<int64_t>(unit.slots.size());
      const auto floats = tensors * static_cast<int64_t>(kFp8SlotBytes / 4);
      const auto place = [&](int64_t tensor, uint64_t at) {
        return tensor * static_cast<int64_t>(kFp8SlotBytes / 4) + static_cast<int64_t>(at / 4);
      };
      const Tensor x = Tensor::Random(rng, dtype, whole);
      const auto shard = [&](int64_t rank) {
        Tensor part(dtype, n);
        for (int64_t i = 0; i < n; ++i) part.Set(i, x[rank * n + i]);
        return part;
      };
      Tensor parts(Dtype::kF32, ranks * floats), slots(Dtype::kF32, floats);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        bench.rank = static_cast<int>(rank);
        Tensor part = shard(rank), own(Dtype::kF32, floats);
        bench.Run(KernelId::kShardMagnitudes, {n, 0}, {&part, &own});
        for (int64_t i = 0; i < floats; ++i) parts.Set(rank * floats + i, own[i]);
      }
      bench.Run(KernelId::kLargestOfParts, {floats, ranks}, {&parts, &slots});
      for (int64_t t = 0; t < tensors; ++t) {
        uint32_t largest = 0;
        const TensorSlot& slot = unit.slots[static_cast<size_t>(t)];
        for (uint64_t i = 0; i < slot.elements; ++i) {
          largest =
              std::max(largest, MagnitudeBits(FloatAt(x, static_cast<int64_t>(slot.offset + i))));
        }
        CHECK(BitsAt(slots, place(t, kFp8AmaxAt)) == largest);
      }
      for (int64_t rank = 0; rank < ranks; ++rank) {
        CAPTURE(ranks);
        CAPTURE(rank);
        bench.rank = static_cast<int>(rank);
        Tensor part = shard(rank), codes(Dtype::kE4M3, n), own = slots;
        bench.Run(KernelId::kQuantizeShard, {n, 0}, {&part, &codes, &own});
        for (int64_t t = 0; t < tensors; ++t) {
          CHECK(FloatAt(own, place(t, kFp8ScaleAt)) ==
                Fp8Scale(FloatAt(slots, place(t, kFp8AmaxAt)), kLargestE4M3));
        }
        bool same = true;
        for (int64_t i = 0; i < n; ++i) {
          const TensorSlot* slot = SlotAt(unit, static_cast<uint64_t>(rank * n + i));
          uint8_t want = 0;  // between tensors
          if (slot != nullptr) {
            const float amax = FloatAt(slots, place(slot - unit.slots.data(), kFp8AmaxAt));
            want = ToE4M3(FloatAt(part, i) * Fp8InverseScale(amax, kLargestE4M3));
          }
          same = same && codes.arg().as<uint8_t>()[i] == want;
        }
        CHECK(same);
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
