// Rotary positions against double references: the table by transformers' formulas, the rotation,
// and the norm of heads before it. Legend: kernel_rows.inc's.
#include <array>
#include <numbers>

#include "executor/kernels/rotary_frequency.h"
#include "tests/executor/kernels/kernel_harness.h"
#include "tests/executor/kernels/rms_norm_reference.h"

namespace zeroplan::kernel_test {
namespace {

constexpr double kPi = std::numbers::pi;

// The frequencies of a head, as transformers' modeling_rope_utils makes them, line by line.
struct Scaling {
  RotaryScaling kind = RotaryScaling::kNone;
  int64_t original = 0;
  double theta = 10000, factor = 1, low = 1, high = 1, attention_factor = 1;

  Doubles Frequencies(int64_t D) const {
    Doubles f;
    for (int64_t i = 0; i < D / 2; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(D);
      f.push_back(1.0 / std::pow(theta, exponent));
    }
    if (kind == RotaryScaling::kLinear) {
      for (double& v : f) v /= factor;
    } else if (kind == RotaryScaling::kLlama3) {
      const auto old = static_cast<double>(original);
      for (double& v : f) {
        const double wavelength = 2 * kPi / v;
        if (wavelength > old / low) {
          v /= factor;
        } else if (wavelength >= old / high) {
          const double smooth = (old / wavelength - low) / (high - low);
          v = (1 - smooth) * v / factor + smooth * v;
        }
      }
    } else if (kind == RotaryScaling::kYarn) {
      const auto dim = static_cast<double>(D), old = static_cast<double>(original);
      const auto correction = [&](double turns) {
        return dim * std::log(old / (turns * 2 * kPi)) / (2 * std::log(theta));
      };
      const double from = std::max(std::floor(correction(high)), 0.0);
      double to = std::min(std::ceil(correction(low)), dim - 1);
      if (from == to) to += 0.001;
      for (size_t i = 0; i < f.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - from) / (to - from), 0.0, 1.0);
        f[i] = f[i] / factor * ramp + f[i] * (1 - ramp);
      }
    }
    return f;
  }

  Doubles Table(int64_t T, int64_t D) const {
    const Doubles f = Frequencies(D);
    Doubles table;
    for (int64_t t = 0; t < T; ++t) {
      for (double v : f) table.push_back(attention_factor * std::cos(static_cast<double>(t) * v));
      for (double v : f) table.push_back(attention_factor * std::sin(static_cast<double>(t) * v));
    }
    return table;
  }

  Tensor Make(Bench& bench, int64_t T, int64_t D) const {
    bench.scalars = KernelScalars{static_cast<float>(theta), static_cast<float>(factor),
                                  static_cast<float>(low), static_cast<float>(high),
                                  static_cast<float>(attention_factor)};
    Tensor table(Dtype::kF32, T * D);
    bench.Run(KernelId::kRotaryTable, {T, D, static_cast<int64_t>(kind), original}, {&table});
    bench.scalars.reset();
    return table;
  }
};

TEST_CASE("rotary table: every scaling") {
  const std::vector<Scaling> scalings = {{},
                                         {.theta = 500000},
                                         {.kind = RotaryScaling::kLinear, .factor = 4},
                                         // Llama 3.1's and 3.2's.
                                         {.kind = RotaryScaling::kLlama3,
                                          .original = 8192,
                                          .theta = 500000,
                                          .factor = 8,
                                          .low = 1,
                                          .high = 4},
                                         {.kind = RotaryScaling::kLlama3,
                                          .original = 8192,
                                          .theta = 500000,
                                          .factor = 32,
                                          .low = 1,
                                          .high = 4},
                                         // Qwen's, with its attention factor 0.1 ln(4) + 1.
                                         {.kind = RotaryScaling::kYarn,
                                          .original = 32768,
                                          .theta = 1000000,
                                          .factor = 4,
                                          .low = 1,
                                          .high = 32,
                                          .attention_factor = 1.1386294361119891},
                                         // A ramp of no length.
                                         {.kind = RotaryScaling::kYarn,
                                          .original = 64,
                                          .theta = 10000,
                                          .factor = 2,
                                          .low = 1000,
                                          .high = 1000}};
  for (const Scaling& scaling : scalings) {
    for (const auto& [T, D] : std::vector<std::array<int64_t, 2>>{{1, 2}, {67, 6}, {300, 128}}) {
      CAPTURE(static_cast<int>(scaling.kind));
      CAPTURE(D);
      Bench bench(2);
      const Tensor table = scaling.Make(bench, T, D);
      // theta and factor are exact in fp32; the attention factor is rounded.
      CheckAllClose(table, scaling.Table(T, D), 4 * 0x1p-24, "table");
    }
  }
}

TEST_CASE("rotary table: positions past 100,000 are as exact as the first") {
  Bench bench(2);
  const int64_t T = 131072, D = 4;
  const Tensor table = Scaling{}.Make(bench, T, D);
  for (const int64_t t : {int64_t{65537}, int64_t{99999}, T - 1}) {
    CHECK(std::abs(table[t * D] - std::cos(static_cast<double>(t))) <= 0x1p-24);
    CHECK(std::abs(table[t * D + 2] - std::sin(static_cast<double>(t))) <= 0x1p-24);
  }
}

struct RotaryShape {
  int64_t B, T, H, G, D;
  int64_t M() const { return B * T; }
  int64_t N() const { return (H + 2 * G) * D; }
  KernelDims dims() const { return {M(), T, H, G, D}; }
};
// Odd heads and sizes, those of real models, and one past the GPU's fast kernels.
const std::vector<RotaryShape> kRotaryShapes = {
    {1, 1, 1, 1, 2},   {2, 5, 3, 1, 6},    {3, 7, 4, 2, 64},  {1, 9, 6, 3, 80},
    {2, 33, 5, 1, 96}, {1, 18, 8, 2, 128}, {1, 5, 2, 2, 256}, {1, 3, 3, 3, 66}};

Doubles Rotate(const RotaryShape& s, const Doubles& qkv, const Doubles& table, double sign = 1) {
  Doubles out = qkv;
  for (int64_t m = 0; m < s.M(); ++m) {
    for (int64_t h = 0; h < s.H + s.G; ++h) {
      for (int64_t i = 0; i < s.D / 2; ++i) {
        const auto a = static_cast<size_t>(m * s.N() + h * s.D + i),
                   b = a + static_cast<size_t>(s.D / 2);
        const auto at = static_cast<size_t>(m % s.T * s.D + i);
        const double cosine = table[at], sine = sign * table[at + static_cast<size_t>(s.D / 2)];
        out[a] = qkv[a] * cosine - qkv[b] * sine;
        out[b] = qkv[b] * cosine + qkv[a] * sine;
      }
    }
  }
  return out;
}

// A few roundings of numbers up to about 5.
constexpr double kRotarySlack = 32 * 0x1p-24;

TEST_CASE("rotary forward and backward turn query and key heads and leave values alone") {
  ZEROPLAN_TEST_RNG(rng);
  for (Dtype dtype : FloatDtypes()) {
    for (const RotaryShape& s : kRotaryShapes) {
      CAPTURE(s.D);
      CAPTURE(s.H);
      Bench bench(3);
      Tensor table = Scaling{.attention_factor = 1.25}.Make(bench, s.T, s.D);
      Tensor qkv = Tensor::Random(rng, dtype, s.M() * s.N());
      const Doubles before = qkv.values();
      bench.Run(KernelId::kRotaryForward, s.dims(), {&qkv, &table});
      CheckAllClose(qkv, Rotate(s, before, table.values()), kRotarySlack, "qkv");

      Tensor d = Tensor::Random(rng, dtype, s.M() * s.N());
      const Doubles dy = d.values();
      bench.Run(KernelId::kRotaryBackward, s.dims(), {&d, &table});
      CheckAllClose(d, Rotate(s, dy, table.values(), -1), kRotarySlack, "dqkv");
    }
  }
}

constexpr double kRotaryEps = 1e-6;

// The norm of heads [first, first + count) of every row, by w; rows of (H + 2G) heads.
Doubles NormHeads(const RotaryShape& s, Doubles qkv, const Doubles& w_2D, Doubles* rstd = nullptr) {
  for (int64_t m = 0; m < s.M(); ++m) {
    for (int64_t h = 0; h < s.H + s.G; ++h) {
      const auto at = qkv.begin() + m * s.N() + h * s.D;
      const auto w = w_2D.begin() + (h < s.H ? 0 : s.D);
      const Doubles y =
          RmsNorm(1, s.D, Doubles(at, at + s.D), Doubles(w, w + s.D), kRotaryEps, rstd);
      std::copy(y.begin(), y.end(), at);
    }
  }
  return qkv;
}

TEST_CASE("norm of query and key heads and their rotation, forward and backward") {
  ZEROPLAN_TEST_RNG(rng);
  for (Dtype dtype : FloatDtypes()) {
    for (const RotaryShape& s : kRotaryShapes) {
      CAPTURE(s.D);
      CAPTURE(s.H);
      Bench bench(3);
      Tensor table = Scaling{}.Make(bench, s.T, s.D);
      Tensor qkv = Tensor::Random(rng, dtype, s.M() * s.N());
      Tensor w = Tensor::Random(rng, dtype, 2 * s.D), out(dtype, s.M() * s.N());
      Tensor rstd(Dtype::kF32, s.M() * (s.H + s.G));
      bench.Run(KernelId::kQkNormRotaryForward, s.dims(), {&qkv, &w, &table, &out, &rstd});
      const Doubles x = qkv.values(), wv = w.values(), angles = table.values();
      Doubles want_rstd;
      const Doubles normed = NormHeads(s, x, wv, &want_rstd);
      // A head of two may be near 0, and its rstd large.
      const double slack = s.D == 2 ? 100 * kRotarySlack : 2 * kRotarySlack;
      CheckAllClose(out, Rotate(s, normed, angles), slack, "out");
      for (int64_t i = 0; i < rstd.size(); ++i) {
        const double want = want_rstd[static_cast<size_t>(i)];
        CHECK(std::abs(rstd[i] - want) <= kRotarySlack * want);
      }

      // The gradient by the formulas of the norm, turned back first.
      Tensor d = Tensor::Random(rng, dtype, s.M() * s.N());
      const Tensor d_before = d;
      Doubles want = Rotate(s, d.values(), angles, -1), want_dw(static_cast<size_t>(2 * s.D));
      double steepest = 1;
      for (double inverse : want_rstd) steepest = std::max(steepest, inverse);
      for (int64_t m = 0; m < s.M(); ++m) {
        for (int64_t h = 0; h < s.H + s.G; ++h) {
          const int64_t at = m * s.N() + h * s.D, w_at = h < s.H ? 0 : s.D;
          const auto cut = [&](const Doubles& v, int64_t from) {
            return Doubles(v.begin() + from, v.begin() + from + s.D);
          };
          const RmsNormGradients g =
              RmsNormBackward(1, s.D, cut(want, at), cut(x, at), cut(wv, w_at), kRotaryEps);
          std::copy(g.dx.begin(), g.dx.end(), want.begin() + at);
          for (int64_t i = 0; i < s.D; ++i) {
            want_dw[static_cast<size_t>(w_at + i)] += g.dw[static_cast<size_t>(i)];
          }
        }
      }
      const double slack_x = 8 * steepest * slack;
      const double slack_w = 8 * slack * std::sqrt(static_cast<double>(s.M() * s.H));
      Tensor dw(Dtype::kF32, 2 * s.D);
      bench.Run(KernelId::kQkNormRotaryBackward, s.dims(), {&d, &qkv, &w, &rstd, &table, &dw});
      CheckAllClose(d, want, slack_x, "dqkv");
      CheckAllClose(dw, want_dw, slack_w, "dw");

      Tensor again = d_before, dw_sum = Tensor::Random(rng, dtype, 2 * s.D);
      Doubles want_sum = dw.values();
      for (int64_t i = 0; i < 2 * s.D; ++i) want_sum[static_cast<size_t>(i)] += dw_sum[i];
      bench.Run(KernelId::kQkNormRotaryBackward, s.dims(),
                {&again, &qkv, &w, &rstd, &table, &dw_sum}, kAccumulate);
      CHECK(again == d);
      CheckAllClose(dw_sum, want_sum, slack_w, "dw added");
    }
  }
}

// The references' formulas against finite differences of the whole.
TEST_CASE("norm of query and key heads: gradients against finite differences") {
  ZEROPLAN_TEST_RNG(rng);
  const RotaryShape s{1, 3, 2, 1, 16};
  Bench bench(2);
  Tensor table = Scaling{}.Make(bench, s.T, s.D);
  Tensor qkv = Tensor::Random(rng, Dtype::kF32, s.M() * s.N());
  Tensor w = Tensor::Random(rng, Dtype::kF32, 2 * s.D), out(Dtype::kF32, s.M() * s.N());
  Tensor rstd(Dtype::kF32, s.M() * (s.H + s.G)), d = Tensor::Random(rng, Dtype::kF32, out.size());
  Tensor dw(Dtype::kF32, 2 * s.D);
  const Doubles dy = d.values(), x = qkv.values(), wv = w.values(), angles = table.values();
  bench.Run(KernelId::kQkNormRotaryForward, s.dims(), {&qkv, &w, &table, &out, &rstd});
  bench.Run(KernelId::kQkNormRotaryBackward, s.dims(), {&d, &qkv, &w, &rstd, &table, &dw});
  const auto of_x = [&](const Doubles& v) { return Rotate(s, NormHeads(s, v, wv), angles); };
  const auto of_w = [&](const Doubles& v) { return Rotate(s, NormHeads(s, x, v), angles); };
  CheckGradient(rng, d, of_x, x, dy, 20 * kRotarySlack, "dqkv");
  CheckGradient(rng, dw, of_w, wv, dy, 20 * kRotarySlack, "dw");
}

// One norm over all query heads of a row and one over all its key heads; w_(H+G)D.
Doubles NormWhole(const RotaryShape& s, Doubles qkv, const Doubles& w, Doubles* rstd = nullptr) {
  for (int64_t m = 0; m < s.M(); ++m) {
    for (const int64_t first : {int64_t{0}, s.H}) {
      const int64_t columns = (first == 0 ? s.H : s.G) * s.D;
      const auto at = qkv.begin() + m * s.N() + first * s.D;
      const auto of_w = w.begin() + first * s.D;
      const Doubles y = RmsNorm(1, columns, Doubles(at, at + columns),
                                Doubles(of_w, of_w + columns), kRotaryEps, rstd);
      std::copy(y.begin(), y.end(), at);
    }
  }
  return qkv;
}

TEST_CASE("norm over all query heads and all key heads, and their rotation") {
  ZEROPLAN_TEST_RNG(rng);
  // Rows that a block's threads take in several turns, too.
  std::vector<RotaryShape> shapes(std::begin(kRotaryShapes), std::end(kRotaryShapes));
  shapes.insert(shapes.end(), {{1, 19, 40, 8, 128}, {1, 3, 17, 1, 34}});
  for (Dtype dtype : FloatDtypes()) {
    for (const RotaryShape& s : shapes) {
      CAPTURE(s.D);
      CAPTURE(s.H);
      Bench bench(3);
      KernelDims dims = s.dims();
      dims[5] = 1;
      const int64_t columns = (s.H + s.G) * s.D;
      Tensor table = Scaling{}.Make(bench, s.T, s.D), w = Tensor::Random(rng, dtype, columns),
             qkv = Tensor::Random(rng, dtype, s.M() * s.N()), out(dtype, s.M() * s.N()),
             rstd(Dtype::kF32, 2 * s.M());
      bench.Run(KernelId::kQkNormRotaryForward, dims, {&qkv, &w, &table, &out, &rstd});
      const Doubles x = qkv.values(), wv = w.values(), angles = table.values();
      Doubles want_rstd;
      const Doubles normed = NormWhole(s, x, wv, &want_rstd);
      const double slack = s.D == 2 ? 100 * kRotarySlack : 2 * kRotarySlack;
      CheckAllClose(out, Rotate(s, normed, angles), slack, "out");
      double steepest = 1;
      for (int64_t i = 0; i < rstd.size(); ++i) {
        const double want = want_rstd[static_cast<size_t>(i)];
        CHECK(std::abs(rstd[i] - want) <= kRotarySlack * want);
        steepest = std::max(steepest, want);
      }

      Tensor d = Tensor::Random(rng, dtype, s.M() * s.N()), dw(Dtype::kF32, columns);
      const Tensor d_before = d;
      const Doubles dy = d.values();
      bench.Run(KernelId::kQkNormRotaryBackward, dims, {&d, &qkv, &w, &rstd, &table, &dw});
      const auto of_x = [&](const Doubles& v) { return Rotate(s, NormWhole(s, v, wv), angles); };
      const auto of_w = [&](const Doubles& v) { return Rotate(s, NormWhole(s, x, v), angles); };
      CheckGradient(rng, d, of_x, x, dy, 20 * steepest * slack, "dqkv", 12);
      const double slack_w = 20 * slack * std::sqrt(static_cast<double>(s.M()));
      CheckGradient(rng, dw, of_w, wv, dy, slack_w, "dw", 12);

      Tensor again = d_before, dw_sum = Tensor::Random(rng, dtype, columns);
      Doubles want_sum = dw.values();
      for (int64_t i = 0; i < columns; ++i) want_sum[static_cast<size_t>(i)] += dw_sum[i];
      bench.Run(KernelId::kQkNormRotaryBackward, dims, {&again, &qkv, &w, &rstd, &table, &dw_sum},
                kAccumulate);
      CHECK(again == d);
      CheckAllClose(dw_sum, want_sum, slack_w, "dw added");
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
