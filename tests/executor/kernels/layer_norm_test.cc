// Layer norm against a double reference and its finite differences. Legend: M rows, C channels.
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

constexpr double kLayerNormEps = 1e-5;

Doubles LayerNorm(int64_t M, int64_t C, const Doubles& x, const Doubles& w, const Doubles& b,
                  Doubles* stats = nullptr, double eps = kLayerNormEps) {
  Doubles y(x.size());
  for (int64_t m = 0; m < M; ++m) {
    double mean = 0, variance = 0;
    const double* row = x.data() + m * C;
    for (int64_t c = 0; c < C; ++c) mean += row[c] / static_cast<double>(C);
    for (int64_t c = 0; c < C; ++c) {
      variance += (row[c] - mean) * (row[c] - mean) / static_cast<double>(C);
    }
    const double inverse = 1 / std::sqrt(variance + eps);
    for (int64_t c = 0; c < C; ++c) {
      const auto i = static_cast<size_t>(c);
      y[static_cast<size_t>(m * C + c)] = (row[c] - mean) * inverse * w[i] + b[i];
    }
    if (stats != nullptr) stats->insert(stats->end(), {mean, inverse});
  }
  return y;
}

struct LayerNormCase {
  int64_t M, C;
};
const std::vector<LayerNormCase> kLayerNormCases = {{1, 1}, {3, 5}, {17, 64}, {70, 130}, {200, 33}};

// fp32 sums over a row of values near 1: a few roundings of C^(1/2) grow, 64 * 2^-24 is ample for
// C <= 130 and values up to about 5.
constexpr double kLayerNormSlack = 64 * 0x1p-24;

TEST_CASE("layer norm forward") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    for (const auto& [M, C] : kLayerNormCases) {
      CAPTURE(M);
      CAPTURE(C);
      Tensor x = Tensor::Random(rng, dtype, M * C), w = Tensor::Random(rng, dtype, C);
      Tensor b = Tensor::Random(rng, dtype, C), y(dtype, M * C), stats(Dtype::kF32, 2 * M);
      bench.Run(KernelId::kLayerNormForward, {M, C}, {&x, &w, &b, &y, &stats});
      Doubles want_stats;
      // With one channel x is its own mean; then 1/std = 1/sqrt(eps) = 316 magnifies roundings.
      const double slack = C == 1 ? 400 * kLayerNormSlack : kLayerNormSlack;
      CheckAllClose(y, LayerNorm(M, C, x.values(), w.values(), b.values(), &want_stats), slack,
                    "y");
      CheckAllClose(stats, want_stats, 400 * kLayerNormSlack, "stats");
    }
  }
}

TEST_CASE("layer norm forward takes its epsilon from the launch, not from the model") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  bench.scalars = KernelScalars{0.25f};
  bench.program.model.layer_norm_eps = 0.5f;
  const int64_t M = 5, C = 24;
  Tensor x = Tensor::Random(rng, Dtype::kF32, M * C), w = Tensor::Random(rng, Dtype::kF32, C);
  Tensor b = Tensor::Random(rng, Dtype::kF32, C), y(Dtype::kF32, M * C), stats(Dtype::kF32, 2 * M);
  bench.Run(KernelId::kLayerNormForward, {M, C}, {&x, &w, &b, &y, &stats});
  CheckAllClose(y, LayerNorm(M, C, x.values(), w.values(), b.values(), nullptr, 0.25),
                kLayerNormSlack, "y");
}

TEST_CASE("layer norm backward against finite differences") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  for (Dtype dtype : FloatDtypes()) {
    for (const auto& [M, C] : kLayerNormCases) {
      if (C == 1) continue;  // y does not depend on x
      CAPTURE(M);
      CAPTURE(C);
      Tensor x = Tensor::Random(rng, dtype, M * C), w = Tensor::Random(rng, dtype, C);
      Tensor b = Tensor::Random(rng, dtype, C), y(dtype, M * C), stats(Dtype::kF32, 2 * M);
      bench.Run(KernelId::kLayerNormForward, {M, C}, {&x, &w, &b, &y, &stats});
      Tensor dy = Tensor::Random(rng, dtype, M * C);
      // Weight gradients may be fp32 while activations are 16-bit.
      Tensor dx(dtype, M * C), dw(Dtype::kF32, C), db(dtype, C);
      bench.Run(KernelId::kLayerNormBackward, {M, C}, {&dy, &x, &w, &stats, &dx, &dw, &db});

      const Doubles xv = x.values(), wv = w.values(), bv = b.values(), dyv = dy.values();
      const auto of_x = [&](const Doubles& v) { return LayerNorm(M, C, v, wv, bv); };
      const auto of_w = [&](const Doubles& v) { return LayerNorm(M, C, xv, v, bv); };
      const auto of_b = [&](const Doubles& v) { return LayerNorm(M, C, xv, wv, v); };
      // Small C: 1/std may be large, and with it the derivatives.
      const double slack_x = 40 * kLayerNormSlack,
                   slack_w = 4 * kLayerNormSlack * std::sqrt(static_cast<double>(M));
      CheckGradient(rng, dx, of_x, xv, dyv, slack_x, "dx");
      CheckGradient(rng, dw, of_w, wv, dyv, slack_w, "dw");
      CheckGradient(rng, db, of_b, bv, dyv, slack_w, "db");

      // Adding: dx, dw and db on top of what is there, each by its own flag.
      Tensor dx_sum = Tensor::Random(rng, dtype, M * C), dw_sum = Tensor::Random(rng, dtype, C);
      Tensor db_sum = Tensor::Random(rng, Dtype::kF32, C);
      Doubles want_dx = dx_sum.values(), want_dw = dw_sum.values(), want_db = db_sum.values();
      Tensor dx32(Dtype::kF32, M * C), dw32(Dtype::kF32, C), db32(Dtype::kF32, C);
      bench.Run(KernelId::kLayerNormBackward, {M, C}, {&dy, &x, &w, &stats, &dx32, &dw32, &db32});
      for (int64_t i = 0; i < M * C; ++i) want_dx[static_cast<size_t>(i)] += dx32[i];
      for (int64_t i = 0; i < C; ++i) {
        want_dw[static_cast<size_t>(i)] += dw32[i];
        want_db[static_cast<size_t>(i)] += db32[i];
      }
      bench.Run(KernelId::kLayerNormBackward, {M, C},
                {&dy, &x, &w, &stats, &dx_sum, &dw_sum, &db_sum}, kAccumulate | kAddToOutput);
      CheckAllClose(dx_sum, want_dx, slack_x, "dx added");
      CheckAllClose(dw_sum, want_dw, slack_w, "dw added");
      CheckAllClose(db_sum, want_db, slack_w, "db added");
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
