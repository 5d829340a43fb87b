// What products of eight bits take, on a GPU beside the CPU's bits, and the products themselves
// beside double arithmetic. Legend: M rows, K columns or the contraction, N columns of a product.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "core/base/fp8.h"
#include "tests/executor/kernels/kernel_harness.h"
#include "tests/executor/kernels/unit_fixture.h"

namespace zeroplan::kernel_test {
namespace {

using enum KernelId;

constexpr Dtype kKinds[] = {Dtype::kE4M3, Dtype::kE5M2};

void RunOnCpu(const Bench& bench, ThreadPool& pool, KernelId id, const KernelDims& dims,
              const std::vector<Tensor*>& tensors) {
  std::vector<KernelArg> args;
  for (Tensor* tensor : tensors) args.push_back(tensor == nullptr ? KernelArg{} : tensor->arg());
  const KernelContext context{&bench.program, bench.rank, bench.seed, &pool};
  CpuKernels().rows[static_cast<size_t>(id)]({id, kNoFlags, dims, args, context, UsualScalars(id)});
}

enum class Fill : uint8_t {
  kNormal,
  kWide,      // exponents from denormal to nearly the largest, and zeros
  kZeros,     // nothing else
  kInfinite,  // kNormal with an infinity
  kNaN,       // and with NaNs of both signs
};
constexpr Fill kFills[] = {Fill::kNormal, Fill::kWide, Fill::kZeros, Fill::kInfinite, Fill::kNaN};

Tensor Numbers(Rng& rng, Dtype dtype, int64_t n, Fill fill) {
  Tensor x = Tensor::Random(rng, dtype, n);
  for (int64_t i = 0; i < n; ++i) {
    if (fill == Fill::kZeros) x.Set(i, i % 2 == 0 ? 0.0 : -0.0);
    if (fill != Fill::kWide) continue;
    const int low = dtype == Dtype::kF16 ? -25 : -150, high = dtype == Dtype::kF16 ? 15 : 127;
    const double wide = std::ldexp(rng.Normal(), low + static_cast<int>(rng.Below(high - low)));
    x.Set(i, rng.Below(50) == 0 ? 0 : wide);
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  if (fill >= Fill::kInfinite) x.Set(rng.Below(n), -kInfinity);
  if (fill == Fill::kNaN) {
    x.Set(rng.Below(n), kNaN);
    x.Set(rng.Below(n), std::copysign(kNaN, -1.0));
  }
  return x;
}

// Floats that are the same bits, or NaNs both.
bool SameFloats(const Tensor& a, const Tensor& b) {
  for (int64_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::bit_cast<uint64_t>(a[i]) != std::bit_cast<uint64_t>(b[i])) {
      MESSAGE("element " << i << ": " << a[i] << " and " << b[i]);
      return false;
    }
  }
  return true;
}

bool SameCodes(Tensor& a, Tensor& b) {
  const auto *x = a.arg().as<uint8_t>(), *y = b.arg().as<uint8_t>();
  for (int64_t i = 0; i < a.size(); ++i) {
    if (x[i] == y[i]) continue;
    MESSAGE("code " << i << ": " << int{x[i]} << " and " << int{y[i]});
    return false;
  }
  return true;
}

int64_t ScaleCount(int64_t block_rows, int64_t rows, int64_t cols) {
  if (block_rows == 0) return 1;
  if (block_rows == 1) return cols / kFp8Block * rows;
  return rows / kFp8Block * Fp8BlockScalesRow(cols);
}

TEST_CASE("gpu largest_magnitude: the CPU's bits, raised from what was there") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  ThreadPool pool(2, 1 << 20);
  for (Dtype dtype : FloatDtypes()) {
    for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{4099}, int64_t{3000017}}) {
      for (const Fill fill : kFills) {
        for (const float before : {0.0f, 1e30f}) {
          CAPTURE(DtypeName(dtype));
          CAPTURE(n);
          CAPTURE(static_cast<int>(fill));
          CAPTURE(before);
          Tensor x = Numbers(rng, dtype, n, fill), amax(Dtype::kF32, 1);
          amax.Set(0, static_cast<double>(before));
          Tensor want = amax;
          bench.Run(kLargestMagnitude, {n}, {&x, &amax});
          RunOnCpu(bench, pool, kLargestMagnitude, {n}, {&x, &want});
          REQUIRE(SameFloats(amax, want));
        }
      }
    }
  }
}

struct Copies {
  Tensor qt, scale_t, q, scale;

  Copies(Dtype kind, int64_t M, int64_t K, int64_t rows)
      : qt(kind, M * K),
        scale_t(Dtype::kF32, ScaleCount(rows, K, M)),
        q(kind, M * K),
        scale(Dtype::kF32, ScaleCount(rows, M, K)) {}

  std::vector<Tensor*> Args(Tensor* x, Tensor* amax, bool transposed, bool plain) {
    const auto of = [](bool there, Tensor& tensor) { return there ? &tensor : nullptr; };
    return {x, amax, of(transposed, qt), of(transposed, scale_t), of(plain, q), of(plain, scale)};
  }
};

TEST_CASE("gpu quantize: codes and scales are the CPU's, as it lies and transposed") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  ThreadPool pool(2, 1 << 20);
  for (const int64_t rows : {int64_t{0}, int64_t{1}, kFp8Block}) {
    const std::vector<std::array<int64_t, 2>> shapes =
        rows == 0 ? std::vector<std::array<int64_t, 2>>{{16, 16}, {48, 80}, {144, 272}, {256, 640}}
                  : std::vector<std::array<int64_t, 2>>{{128, 128}, {256, 640}, {640, 384}};
    for (const auto& [M, K] : shapes) {
      for (Dtype dtype : FloatDtypes()) {
        for (Dtype kind : kKinds) {
          for (const Fill fill : kFills) {
            for (int layout = 1; layout < 4; ++layout) {
              const bool plain = (layout & 1) != 0, transposed = (layout & 2) != 0;
              CAPTURE(rows);
              CAPTURE(M);
              CAPTURE(K);
              CAPTURE(DtypeName(dtype));
              CAPTURE(DtypeName(kind));
              CAPTURE(static_cast<int>(fill));
              CAPTURE(layout);
              Tensor x = Numbers(rng, dtype, M * K, fill), amax(Dtype::kF32, 1);
              RunOnCpu(bench, pool, kLargestMagnitude, {M * K}, {&x, &amax});
              Tensor* const largest = rows == 0 ? &amax : nullptr;
              Copies got(kind, M, K, rows), want(kind, M, K, rows);
              bench.Run(kQuantize, {M, K, rows}, got.Args(&x, largest, transposed, plain));
              RunOnCpu(bench, pool, kQuantize, {M, K, rows},
                       want.Args(&x, largest, transposed, plain));
              REQUIRE(SameCodes(got.q, want.q));
              REQUIRE(SameCodes(got.qt, want.qt));
              REQUIRE(SameFloats(got.scale, want.scale));
              REQUIRE(SameFloats(got.scale_t, want.scale_t));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("gpu quantize: every number of 16 bits becomes the CPU's code") {
  Bench bench(1);
  ThreadPool pool(2, 1 << 20);
  constexpr int64_t kSide = 256;
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (Dtype kind : kKinds) {
      // The largest number itself makes the inverse 1; an amax of no tensor others.
      for (const double amax_value : {kind == Dtype::kE4M3 ? 448.0 : 57344.0, 3.7, 0.0}) {
        CAPTURE(DtypeName(dtype));
        CAPTURE(DtypeName(kind));
        CAPTURE(amax_value);
        Tensor x(dtype, kSide * kSide), amax(Dtype::kF32, 1);
        for (int64_t i = 0; i < kSide * kSide; ++i)
          x.arg().as<uint16_t>()[i] = static_cast<uint16_t>(i);
        amax.Set(0, amax_value);
        Copies got(kind, kSide, kSide, 0), want(kind, kSide, kSide, 0);
        bench.Run(kQuantize, {kSide, kSide, 0}, got.Args(&x, &amax, true, true));
        RunOnCpu(bench, pool, kQuantize, {kSide, kSide, 0}, want.Args(&x, &amax, true, true));
        CHECK(SameCodes(got.q, want.q));
        CHECK(SameCodes(got.qt, want.qt));
      }
    }
  }
}

TEST_CASE("gpu quantize: codes are transposed as they are") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  constexpr int64_t kRows = 272, kCols = 144;
  Tensor x(Dtype::kE4M3, kRows * kCols), qt(Dtype::kE4M3, kRows * kCols);
  auto* codes = x.arg().as<uint8_t>();
  for (int64_t i = 0; i < x.size(); ++i) codes[i] = static_cast<uint8_t>(rng.Below(256));
  bench.Run(kQuantize, {kRows, kCols, 0}, {&x, nullptr, &qt});
  for (int64_t m = 0; m < kRows; ++m) {
    for (int64_t k = 0; k < kCols; ++k) {
      REQUIRE(qt.arg().as<uint8_t>()[k * kRows + m] == codes[m * kCols + k]);
    }
  }
}

// ---- products ----------------------------------------------------------------------------------

// An input of a product with its scales, rows of K.
struct Operand {
  Tensor codes, scale;
  int64_t block_rows, rows, K;

  Operand(Dtype kind, int64_t block, int64_t of_rows, int64_t of_K)
      : codes(kind, of_rows * of_K),
        scale(Dtype::kF32, ScaleCount(block, of_rows, of_K)),
        block_rows(block),
        rows(of_rows),
        K(of_K) {}

  void Set(int64_t i, double value) {
    codes.arg().as<uint8_t>()[i] = codes.dtype() == Dtype::kE4M3
                                       ? ToE4M3(static_cast<float>(value))
                                       : ToE5M2(static_cast<float>(value));
  }
  double ScaleAt(int64_t row, int64_t k) const {
    if (block_rows == 0) return scale[0];
    if (block_rows == 1) return scale[k / kFp8Block * rows + row];
    return scale[row / kFp8Block * Fp8BlockScalesRow(K) + k / kFp8Block];
  }
  double At(int64_t row, int64_t k) const { return codes[row * K + k] * ScaleAt(row, k); }
};

struct Case {
  Dtype a = Dtype::kE4M3, b = Dtype::kE4M3, out = Dtype::kBF16;
  int64_t rows_a = 0, rows_b = 0, fast = 0;
  int flags = 0;
  Dtype bias = Dtype::kU8;  // kU8: there is none
  bool residual = false;
};

// What an element should be: the sum of the product with what is added to it, whose magnitudes add
// up to `start`.
struct WantedEntry {
  double value = 0, sum = 0, start = 0;
};

// Multiplies and calls fn(got, WantedEntry) for samples.
template <typename FillA, typename FillB, typename Fn>
void ForProduct(Rng& rng, Bench& bench, const Case& c, const std::array<int64_t, 3>& shape,
                int samples, FillA&& fill_a, FillB&& fill_b, Fn&& fn) {
  const auto [M, K, N] = shape;
  Operand a(c.a, c.rows_a, M, K), b(c.b, c.rows_b, N, K);
  for (int64_t i = 0; i < M * K; ++i) a.Set(i, fill_a());
  for (int64_t i = 0; i < N * K; ++i) b.Set(i, fill_b());
  for (Operand* one : {&a, &b}) {
    for (int64_t i = 0; i < one->scale.size(); ++i) {
      one->scale.Set(i, std::ldexp(1.0, -3 + static_cast<int>(rng.Below(4))));
    }
  }
  const bool biased = c.bias != Dtype::kU8, adds = (c.flags & kAccumulate) != 0;
  Tensor bias = biased ? Tensor::Random(rng, c.bias, N, 4) : Tensor::Absent();
  Tensor residual = c.residual ? Tensor::Random(rng, c.out, M * N, 4) : Tensor::Absent();
  Tensor y = Tensor::Random(rng, c.out, M * N, 4);
  const Tensor before = y;
  bench.Run(kFp8Matmul, {M, K, N, c.rows_a, c.rows_b, c.fast},
            {&a.codes, &a.scale, &b.codes, &b.scale, &bias, &residual, &y}, c.flags);
  for (int sample = 0; sample < samples; ++sample) {
    const int64_t m = rng.Below(M), n = rng.Below(N);
    double sum = 0;
    for (int64_t k = 0; k < K; ++k) sum += a.At(m, k) * b.At(n, k);
    const double parts[] = {adds ? before[m * N + n] : 0, biased ? bias[n] : 0,
                            c.residual ? residual[m * N + n] : 0};
    WantedEntry want{sum + parts[0] + parts[1] + parts[2], sum};
    for (const double part : parts) want.start += std::abs(part);
    fn(y[m * N + n], want);
  }
}

void Capture(const Case& c, const std::array<int64_t, 3>& shape, std::string* text) {
  *text = std::string(DtypeName(c.a)) + " x " + std::string(DtypeName(c.b)) + " -> " +
          std::string(DtypeName(c.out)) + ", rows " + std::to_string(c.rows_a) + " and " +
          std::to_string(c.rows_b) + ", fast " + std::to_string(c.fast) + ", flags " +
          std::to_string(c.flags) + ", bias " + std::string(DtypeName(c.bias)) + ", residual " +
          std::to_string(c.residual) + ", M K N " + std::to_string(shape[0]) + " " +
          std::to_string(shape[1]) + " " + std::to_string(shape[2]);
}

std::vector<Case> Cases(bool blocks) {
  std::vector<Case> all;
  const auto add = [&](const Case& c) {
    for (const Dtype out : FloatDtypes()) {
      for (const int64_t fast : {0, 1}) {
        Case one = c;
        one.out = out;
        one.fast = fast;
        all.push_back(one);
        one.flags = kAccumulate;
        all.push_back(one);
        one.flags = 0;
        one.residual = true;
        all.push_back(one);
        for (const Dtype bias : {out, Dtype::kF32}) {
          one.bias = bias;
          one.residual = bias == out;
          all.push_back(one);
          if (out == Dtype::kF32) break;
        }
      }
    }
  };
  if (blocks) {
    add({.rows_a = 1, .rows_b = 1});
    add({.rows_a = 1, .rows_b = kFp8Block});
    add({.a = Dtype::kE5M2, .rows_a = 1, .rows_b = kFp8Block});
  } else {
    add({});
    add({.a = Dtype::kE5M2});
    add({.b = Dtype::kE5M2});
  }
  return all;
}

// Terms are 0, 1 and -1 (times powers of 2 that a slice of the contraction shares), so that a sum
// of K of them has at most 11 bits: those that the multiply-add units keep of an aligned term, 13
// behind its largest one's leading bit, are enough, and all sums are exact.
void CheckExact(bool blocks) {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (const Case& c : Cases(blocks)) {
    for (const std::array<int64_t, 3>& shape :
         blocks
             ? std::vector<std::array<int64_t, 3>>{{128, 128, 128}, {384, 640, 256}}
             : std::vector<std::array<int64_t, 3>>{{16, 16, 16}, {144, 80, 48}, {272, 1040, 400}}) {
      std::string text;
      Capture(c, shape, &text);
      INFO(text);
      const auto fill = [&] { return static_cast<double>(rng.Below(3) - 1); };
      ForProduct(rng, bench, c, shape, 300, fill, fill, [&](double got, const WantedEntry& want) {
        // What y starts from may be rounded to its dtype on its own, and so may the product by
        // blocks.
        const double rounded = want.start + (blocks ? std::abs(want.sum) : 0);
        const double slack = want.start == 0 ? 0
                                             : 2 * RoundOff(c.out) * rounded +
                                                   0x1p-22 * (std::abs(want.sum) + want.start);
        INFO("got " << got << ", want " << want.value);
        REQUIRE(Close(got, want.value, c.out, slack));
      });
    }
  }
}

TEST_CASE("gpu fp8_matmul: sums that eight bits hold exactly") { CheckExact(false); }
TEST_CASE("gpu fp8_matmul: the same with scales of blocks") { CheckExact(true); }

// The multiply-add units align the 32 products of a step and the sum so far to the largest of them
// and drop what lies more than 13 bits behind. Taken as independent errors of 33 terms, uniform
// over a unit of 2^-13 of the sum so far, whose square grows by 32 terms a step, a sum of n steps
// is off by 2^-13 * sqrt(33 / 24 * n) of its root mean square. Fast sums take all K / 32 steps so;
// others are added up in fp32 every 128 terms at the latest. Twice that is allowed.
double Allowed(int64_t K, bool fast) {
  const double steps = static_cast<double>(fast ? K : std::min<int64_t>(K, kFp8Block)) / 32;
  return 2 * 0x1p-13 * std::sqrt(33.0 / 24 * steps);
}

void CheckRandom(bool blocks) {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (const Case& c : Cases(blocks)) {
    if (c.out != Dtype::kF32 || c.residual || c.bias != Dtype::kU8) continue;
    for (const std::array<int64_t, 3>& shape :
         {std::array<int64_t, 3>{256, 384, 512}, {1024, 2048, 768}, {128, 16384, 128}}) {
      std::string text;
      Capture(c, shape, &text);
      INFO(text);
      double squares = 0, errors = 0;
      const auto fill = [&] { return 64 * rng.Normal(); };
      ForProduct(rng, bench, c, shape, 400, fill, fill, [&](double got, const WantedEntry& want) {
        const double error = got - want.value;
        squares += want.sum * want.sum;
        errors += error * error;
      });
      const double off = std::sqrt(errors / squares);
      INFO("off by " << off << " of the root mean square");
      CHECK(off <= Allowed(shape[1], c.fast != 0 && !blocks));
    }
  }
}

TEST_CASE("gpu fp8_matmul: sums of random numbers") { CheckRandom(false); }
TEST_CASE("gpu fp8_matmul: the same with scales of blocks, random numbers") { CheckRandom(true); }

TEST_CASE("gpu fp8_matmul: a product of a real layer") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  const Case c;
  const std::array<int64_t, 3> shape = {16384, 2048, 3072};
  const auto fill = [&] { return static_cast<double>(rng.Below(3) - 1); };
  ForProduct(rng, bench, c, shape, 2000, fill, fill, [&](double got, const WantedEntry& want) {
    REQUIRE(Close(got, want.value, c.out, 0));
  });
}

TEST_CASE("gpu bias_backward: sums of rows, added and written") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (Dtype dtype : FloatDtypes()) {
    for (const int flags : {0, int{kAccumulate}}) {
      constexpr int64_t kM = 2048, kN = 272;
      CAPTURE(DtypeName(dtype));
      CAPTURE(flags);
      Tensor dy = Tensor::Random(rng, dtype, kM * kN), db = Tensor::Random(rng, Dtype::kF32, kN);
      const Tensor before = db;
      bench.Run(kBiasBackward, {kM, kN}, {&dy, &db}, flags);
      for (int64_t n = 0; n < kN; ++n) {
        double want = flags != 0 ? before[n] : 0, magnitude = std::abs(want);
        for (int64_t m = 0; m < kM; ++m) {
          want += dy[m * kN + n];
          magnitude += std::abs(dy[m * kN + n]);
        }
        REQUIRE(Close(db[n], want, Dtype::kF32, (kM + 2) * 0x1p-24 * magnitude));
      }
    }
  }
}

// ---- magnitudes taken along --------------------------------------------------------------------

// Runs a kernel without and with its last argument: the outputs' bits stay, and it is the largest
// magnitude in output `of`.
void CheckTaken(Bench& bench, KernelId id, const KernelDims& dims, const std::vector<Tensor>& args,
                int flags = 0) {
  const auto [of, at] = KernelInfo(id).magnitude;
  CAPTURE(KernelInfo(id).name);
  CAPTURE(FormatDims(id, dims, UsualScalars(id)));
  CAPTURE(flags);
  const auto run = [&](std::vector<Tensor>& tensors) {
    std::vector<Tensor*> pointers;
    for (Tensor& tensor : tensors) pointers.push_back(&tensor);
    bench.Run(id, dims, pointers, flags);
  };
  std::vector<Tensor> plain = args;
  run(plain);
  for (const double before : {0.0, 1e20}) {
    std::vector<Tensor> taken = args;
    taken.resize(static_cast<size_t>(at) + 1);
    taken.back() = Tensor(Dtype::kF32, 1);
    taken.back().Set(0, before);
    run(taken);
    for (size_t i = 0; i < plain.size(); ++i) CHECK(taken[i] == plain[i]);
    double want = before;
    const Tensor& made = taken[static_cast<size_t>(of)];
    for (int64_t i = 0; i < made.size(); ++i) want = std::max(want, std::abs(made[i]));
    if (before > 0) want = static_cast<double>(static_cast<float>(want));
    CHECK(taken.back()[0] == want);
  }
}

TEST_CASE("gpu magnitudes taken along: those of what is written") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (Dtype dtype : FloatDtypes()) {
    CAPTURE(DtypeName(dtype));
    const auto random = [&](int64_t n) { return Tensor::Random(rng, dtype, n); };
    // Rows of a warp, of a block, with a tail of warps, odd ones; backward all sizes of pieces.
    for (const auto& [M, C] : std::vector<std::array<int64_t, 2>>{{1, 8},
                                                                  {67, 256},
                                                                  {300, 768},
                                                                  {41, 2048},
                                                                  {33, 3072},
                                                                  {19, 4096},
                                                                  {9, 8192},
                                                                  {5, 12288},
                                                                  {3, 16384},
                                                                  {37, 31}}) {
      Tensor w = random(C), stats(Dtype::kF32, 2 * M), rstd(Dtype::kF32, M);
      for (int64_t m = 0; m < M; ++m) {
        stats.Set(2 * m, 0.1 * rng.Normal());
        stats.Set(2 * m + 1, 0.9);
        rstd.Set(m, 1.1);
      }
      CheckTaken(bench, kLayerNormForward, {M, C},
                 {random(M * C), w, random(C), Tensor(dtype, M * C), Tensor(Dtype::kF32, 2 * M)});
      CheckTaken(bench, kRmsNormForward, {M, C},
                 {random(M * C), w, Tensor(dtype, M * C), Tensor(Dtype::kF32, M)});
      for (const int flags : {0, int{kAddToOutput}}) {
        CheckTaken(bench, kLayerNormBackward, {M, C},
                   {random(M * C), random(M * C), w, stats, random(M * C), Tensor(Dtype::kF32, C),
                    Tensor(Dtype::kF32, C)},
                   flags);
        CheckTaken(bench, kRmsNormBackward, {M, C},
                   {random(M * C), random(M * C), w, rstd, random(M * C), Tensor(Dtype::kF32, C)},
                   flags);
      }
      CheckTaken(bench, kSwiGluForward, {M, C}, {random(2 * M * C), Tensor(dtype, M * C)});
      CheckTaken(bench, kSwiGluBackward, {M, C}, {random(M * C), random(2 * M * C)});
      CheckTaken(bench, kGeluForward, {M * C}, {random(M * C), Tensor(dtype, M * C)});
      CheckTaken(bench, kGeluBackward, {M * C}, {random(M * C), random(M * C)});
    }
  }
}

// ---- shards ------------------------------------------------------------------------------------

TEST_CASE("gpu shards: magnitudes, the largest of ranks, codes and scales are the CPU's") {
  ZEROPLAN_TEST_RNG(rng);
  ThreadPool pool(2, 1 << 20);
  for (const int shards : {1, 3}) {
    for (Dtype dtype : FloatDtypes()) {
      for (int rank = 0; rank < shards; ++rank) {
        CAPTURE(shards);
        CAPTURE(DtypeName(dtype));
        CAPTURE(rank);
        Bench bench(1);
        bench.program.layout = TestLayout(static_cast<uint64_t>(shards));
        bench.program.setup.batch.world_size = shards;
        bench.rank = rank;
        const Unit& unit = bench.program.layout.units[0];
        const auto n = static_cast<int64_t>(unit.shard_elements);
        const auto slot_floats =
            static_cast<int64_t>(unit.slots.size() * kFp8SlotBytes / sizeof(float));
        Tensor x = Tensor::Random(rng, dtype, n), slots(Dtype::kF32, slot_floats), want = slots;
        bench.Run(kShardMagnitudes, {n, 0}, {&x, &slots});
        RunOnCpu(bench, pool, kShardMagnitudes, {n, 0}, {&x, &want});
        CHECK(slots == want);
        Tensor q(Dtype::kE4M3, n), want_q = q;
        bench.Run(kQuantizeShard, {n, 0}, {&x, &q, &slots});
        RunOnCpu(bench, pool, kQuantizeShard, {n, 0}, {&x, &want_q, &want});
        CHECK(q == want_q);
        CHECK(slots == want);
      }
    }
  }
  constexpr int64_t kN = 300, kParts = 5;
  Bench bench(1);
  Tensor parts = Tensor::Random(rng, Dtype::kF32, kN * kParts), got(Dtype::kF32, kN), want = got;
  bench.Run(kLargestOfParts, {kN, kParts}, {&parts, &got});
  RunOnCpu(bench, pool, kLargestOfParts, {kN, kParts}, {&parts, &want});
  CHECK(got == want);
}

}  // namespace
}  // namespace zeroplan::kernel_test
