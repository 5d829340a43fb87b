// Layer norm at the hidden sizes of real models, and at those past the fast kernels' limits.
// Legend: M rows, C channels.
#include <algorithm>
#include <array>

#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

constexpr double kEps = 1e-5;

struct Problem {
  int64_t M, C;
  Tensor x, w, b, y, stats, dy, dx, dw, db;

  Problem(Rng& rng, Dtype dtype, int64_t rows, int64_t channels)
      : M(rows),
        C(channels),
        x(Tensor::Random(rng, dtype, M * C)),
        w(Tensor::Random(rng, dtype, C)),
        b(Tensor::Random(rng, dtype, C)),
        y(dtype, M * C),
        stats(Dtype::kF32, 2 * M),
        dy(Tensor::Random(rng, dtype, M * C)),
        dx(Tensor::Random(rng, dtype, M * C)),
        dw(Tensor::Random(rng, Dtype::kF32, C)),
        db(Tensor::Random(rng, dtype, C)) {}

  void Forward(Bench& bench) {
    bench.Run(KernelId::kLayerNormForward, {M, C}, {&x, &w, &b, &y, &stats});
  }
  void Backward(Bench& bench, int flags) {
    bench.Run(KernelId::kLayerNormBackward, {M, C}, {&dy, &x, &w, &stats, &dx, &dw, &db}, flags);
  }
};

struct RowStats {
  double mean = 0, inverse = 0;
};
RowStats Stats(const Problem& p, int64_t m) {
  RowStats s;
  for (int64_t c = 0; c < p.C; ++c) s.mean += p.x[m * p.C + c] / static_cast<double>(p.C);
  double variance = 0;
  for (int64_t c = 0; c < p.C; ++c) {
    const double d = p.x[m * p.C + c] - s.mean;
    variance += d * d / static_cast<double>(p.C);
  }
  s.inverse = 1 / std::sqrt(variance + kEps);
  return s;
}

// A few roundings of numbers up to about 10 (64 units), and of sums of n numbers near 1, which
// reach some sqrt(n).
double Slack(int64_t n) { return (64 + 2 * std::sqrt(static_cast<double>(n))) * 0x1p-24; }

void CheckLayerNorm(Rng& rng, Dtype dtype, int64_t M, int64_t C,
                    int flags = kAccumulate | kAddToOutput) {
  CAPTURE(DtypeName(dtype));
  CAPTURE(M);
  CAPTURE(C);
  CAPTURE(flags);
  Bench bench(1);
  Problem p(rng, dtype, M, C);
  const auto before = [&](const Tensor& t, int flag) {
    return (flags & flag) != 0 ? t.values() : Doubles(static_cast<size_t>(t.size()));
  };
  const Doubles dx_before = before(p.dx, kAddToOutput), dw_before = before(p.dw, kAccumulate),
                db_before = before(p.db, kAccumulate);
  p.Forward(bench);
  Problem again = p;
  p.Backward(bench, flags);
  again.Forward(bench);
  again.Backward(bench, flags);
  CHECK(again.y == p.y);
  CHECK(again.stats == p.stats);
  CHECK(again.dx == p.dx);
  CHECK(again.dw == p.dw);
  CHECK(again.db == p.db);

  std::vector<RowStats> stats;
  // Terms that cancel in dx are as large as the factor that x is scaled with, and normal values are
  // off by so many roundings: up to 300 where a row's values are equal.
  double scale = 1;
  for (int64_t m = 0; m < M; ++m) {
    stats.push_back(Stats(p, m));
    scale = std::max(scale, stats.back().inverse);
  }
  const auto normal = [&](int64_t m, int64_t c) {
    const RowStats& s = stats[static_cast<size_t>(m)];
    return (p.x[m * C + c] - s.mean) * s.inverse;
  };
  for (int sample = 0; sample < 8; ++sample) {
    const int64_t m = sample == 0 ? 0 : sample == 1 ? M - 1 : rng.Below(M);
    CAPTURE(m);
    const RowStats& s = stats[static_cast<size_t>(m)];
    CHECK(Close(p.stats[2 * m], s.mean, Dtype::kF32, Slack(C)));
    CHECK(Close(p.stats[2 * m + 1], s.inverse, Dtype::kF32, Slack(C)));
    double mean_d = 0, mean_dn = 0;
    for (int64_t c = 0; c < C; ++c) {
      const double d = p.dy[m * C + c] * p.w[c] / static_cast<double>(C);
      mean_d += d;
      mean_dn += d * normal(m, c);
    }
    for (int64_t c = 0; c < C; ++c) {
      CAPTURE(c);
      REQUIRE(Close(p.y[m * C + c], normal(m, c) * p.w[c] + p.b[c], dtype, Slack(C)));
      const double dx = (p.dy[m * C + c] * p.w[c] - mean_d - normal(m, c) * mean_dn) * s.inverse;
      REQUIRE(Close(p.dx[m * C + c], dx_before[static_cast<size_t>(m * C + c)] + dx, dtype,
                    4 * scale * Slack(C)));
    }
  }
  for (int sample = 0; sample < 40; ++sample) {
    const int64_t c = sample == 0 ? 0 : sample == 1 ? C - 1 : rng.Below(C);
    CAPTURE(c);
    double dw = dw_before[static_cast<size_t>(c)], db = db_before[static_cast<size_t>(c)];
    for (int64_t m = 0; m < M; ++m) {
      dw += p.dy[m * C + c] * normal(m, c);
      db += p.dy[m * C + c];
    }
    CHECK(Close(p.dw[c], dw, Dtype::kF32, 4 * scale * Slack(M)));
    CHECK(Close(p.db[c], db, dtype, 4 * Slack(M)));
  }
}

TEST_CASE("gpu layer norm: hidden sizes of real models, twice the same bits") {
  ZEROPLAN_TEST_RNG(rng);
  for (int64_t C : {768, 1600, 2560, 4096, 5120, 12288}) {
    CheckLayerNorm(rng, Dtype::kBF16, 130, C);
    CheckLayerNorm(rng, Dtype::kF32, 67, C);
  }
  CheckLayerNorm(rng, Dtype::kF16, 130, 4096);
}

TEST_CASE("gpu layer norm: sizes at the kernels' borders") {
  ZEROPLAN_TEST_RNG(rng);
  // One vector; warps filled and one vector more; block per row; past the fast kernels; odd.
  for (int64_t C :
       {8, 256, 264, 512, 520, 2048, 2056, 4104, 8192, 8200, 12296, 16384, 16392, 4097}) {
    CheckLayerNorm(rng, Dtype::kBF16, 9, C);
  }
}

// A row of a block alone, fewer rows than a block has groups, and rows that come out uneven.
TEST_CASE("gpu layer norm: every dtype, few rows and many, odd sizes, written and added") {
  ZEROPLAN_TEST_RNG(rng);
  for (Dtype dtype : FloatDtypes()) {
    for (int64_t C : {1, 7, 768, 1600, 1601, 4096, 12288}) {
      CheckLayerNorm(rng, dtype, 1, C, kNoFlags);
      CheckLayerNorm(rng, dtype, 3, C, kAccumulate);
      CheckLayerNorm(rng, dtype, 3, C, kAddToOutput);
      CheckLayerNorm(rng, dtype, C > 2000 ? 300 : 1000, C, kAccumulate | kAddToOutput);
    }
  }
  CheckLayerNorm(rng, Dtype::kBF16, 1000, 4096, kNoFlags);
  CheckLayerNorm(rng, Dtype::kBF16, 1000, 12288, kNoFlags);
}

// Elements a thread of the backward pass: 8 up to 3584 columns, 16 up to 8192, 24 up to 12288; four
// to a piece in fp32. 1 to 14 rows of a block at a time.
TEST_CASE("gpu layer norm backward: at the borders of its layouts") {
  ZEROPLAN_TEST_RNG(rng);
  for (int64_t C :
       {4, 12, 256, 260, 512, 520, 768, 1024, 1032, 2048, 3584, 3592, 8188, 8192, 8200}) {
    CheckLayerNorm(rng, Dtype::kBF16, 100, C, kAccumulate | kAddToOutput);
    CheckLayerNorm(rng, Dtype::kF32, 70, C, kNoFlags);
  }
}

TEST_CASE("gpu layer norm: more rows than blocks") {
  ZEROPLAN_TEST_RNG(rng);
  CheckLayerNorm(rng, Dtype::kBF16, 20'001, 64);
  CheckLayerNorm(rng, Dtype::kBF16, 5'003, 768, kNoFlags);
  CheckLayerNorm(rng, Dtype::kF16, 4'241, 1600);
  CheckLayerNorm(rng, Dtype::kF32, 17'000, 33);
}

}  // namespace
}  // namespace zeroplan::kernel_test
