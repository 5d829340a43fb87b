// RMS norm against a double reference and its finite differences. Legend: M rows, C channels.
#include "tests/executor/kernels/kernel_harness.h"
#include "tests/executor/kernels/rms_norm_reference.h"

namespace zeroplan::kernel_test {
namespace {

constexpr double kRmsNormEps = 1e-5;

struct RmsNormCase {
  int64_t M, C;
};
// Odd, multiples of a vector, and past what a warp keeps in registers.
const std::vector<RmsNormCase> kRmsNormCases = {{1, 1},    {3, 5},    {17, 64},
                                                {70, 130}, {200, 33}, {19, 2056}};

// fp32 sums over a row of values near 1: roundings of C^(1/2) grow; 128 * 2^-24 is ample for
// C <= 2056 and values up to about 5.
constexpr double kRmsNormSlack = 128 * 0x1p-24;

TEST_CASE("rms norm forward") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    for (const auto& [M, C] : kRmsNormCases) {
      CAPTURE(M);
      CAPTURE(C);
      Tensor x = Tensor::Random(rng, dtype, M * C), w = Tensor::Random(rng, dtype, C);
      Tensor y(dtype, M * C), rstd(Dtype::kF32, M);
      bench.Run(KernelId::kRmsNormForward, {M, C}, {&x, &w, &y, &rstd});
      Doubles want_rstd;
      CheckAllClose(y, RmsNorm(M, C, x.values(), w.values(), kRmsNormEps, &want_rstd),
                    kRmsNormSlack, "y");
      // With one channel rstd is 1/|x|, which may be large.
      for (int64_t m = 0; m < M; ++m) {
        const double want = want_rstd[static_cast<size_t>(m)];
        CHECK(std::abs(rstd[m] - want) <= kRmsNormSlack * want);
      }
    }
  }
}

TEST_CASE("rms norm forward takes its epsilon from the launch and weights of another dtype") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  bench.scalars = KernelScalars{0.25f};
  const int64_t M = 5, C = 24;
  Tensor x = Tensor::Random(rng, Dtype::kBF16, M * C), w = Tensor::Random(rng, Dtype::kF32, C);
  Tensor y(Dtype::kF32, M * C), rstd(Dtype::kF32, M);
  bench.Run(KernelId::kRmsNormForward, {M, C}, {&x, &w, &y, &rstd});
  CheckAllClose(y, RmsNorm(M, C, x.values(), w.values(), 0.25), kRmsNormSlack, "y");
}

TEST_CASE("rms norm backward against finite differences") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  for (Dtype dtype : FloatDtypes()) {
    for (const auto& [M, C] : kRmsNormCases) {
      if (C == 1) continue;          // y is 1 or -1, but for the epsilon
      if (M * C > 10'000) continue;  // finite differences take that long
      CAPTURE(M);
      CAPTURE(C);
      Tensor x = Tensor::Random(rng, dtype, M * C), w = Tensor::Random(rng, dtype, C);
      Tensor y(dtype, M * C), rstd(Dtype::kF32, M);
      bench.Run(KernelId::kRmsNormForward, {M, C}, {&x, &w, &y, &rstd});
      Tensor dy = Tensor::Random(rng, dtype, M * C);
      // Weight gradients may be fp32 while activations are 16-bit.
      Tensor dx(dtype, M * C), dw(Dtype::kF32, C);
      bench.Run(KernelId::kRmsNormBackward, {M, C}, {&dy, &x, &w, &rstd, &dx, &dw});

      const Doubles xv = x.values(), wv = w.values(), dyv = dy.values();
      const auto of_x = [&](const Doubles& v) { return RmsNorm(M, C, v, wv, kRmsNormEps); };
      const auto of_w = [&](const Doubles& v) { return RmsNorm(M, C, xv, v, kRmsNormEps); };
      // Small C: rstd may be large, and with it the derivatives.
      const double slack_x = 40 * kRmsNormSlack,
                   slack_w = 4 * kRmsNormSlack * std::sqrt(static_cast<double>(M));
      CheckGradient(rng, dx, of_x, xv, dyv, slack_x, "dx");
      CheckGradient(rng, dw, of_w, wv, dyv, slack_w, "dw");

      // Adding: dx and dw on top of what is there, each by its own flag.
      Tensor dx32(Dtype::kF32, M * C), dw32(Dtype::kF32, C);
      bench.Run(KernelId::kRmsNormBackward, {M, C}, {&dy, &x, &w, &rstd, &dx32, &dw32});
      for (int flags : {0 + kAccumulate, 0 + kAddToOutput, kAccumulate | kAddToOutput}) {
        CAPTURE(flags);
        Tensor dx_sum = Tensor::Random(rng, dtype, M * C), dw_sum = Tensor::Random(rng, dtype, C);
        Doubles want_dx = dx32.values(), want_dw = dw32.values();
        for (size_t i = 0; i < want_dx.size(); ++i) {
          if ((flags & kAddToOutput) != 0) want_dx[i] += dx_sum[static_cast<int64_t>(i)];
        }
        for (size_t i = 0; i < want_dw.size(); ++i) {
          if ((flags & kAccumulate) != 0) want_dw[i] += dw_sum[static_cast<int64_t>(i)];
        }
        bench.Run(KernelId::kRmsNormBackward, {M, C}, {&dy, &x, &w, &rstd, &dx_sum, &dw_sum},
                  flags);
        CheckAllClose(dx_sum, want_dx, slack_x, "dx added");
        CheckAllClose(dw_sum, want_dw, slack_w, "dw added");
      }
    }
  }
}

// The wide rows of real models, each way that a GPU takes them: against the formula, whose value
// the case above confirms. Twice the same bits.
TEST_CASE("rms norm backward of wide rows") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  const std::vector<int64_t> widths =
      kOnGpu ? std::vector<int64_t>{8, 2048, 3584, 4096, 8192, 8200, 12288, 16384, 16400, 4097}
             : std::vector<int64_t>{2048, 4097};
  for (Dtype dtype : FloatDtypes()) {
    for (const int64_t C : widths) {
      const int64_t M = 37;
      CAPTURE(C);
      Tensor x = Tensor::Random(rng, dtype, M * C), w = Tensor::Random(rng, dtype, C);
      Tensor dy = Tensor::Random(rng, dtype, M * C), y(dtype, M * C), rstd(Dtype::kF32, M);
      bench.Run(KernelId::kRmsNormForward, {M, C}, {&x, &w, &y, &rstd});
      CheckAllClose(y, RmsNorm(M, C, x.values(), w.values(), kRmsNormEps), 4 * kRmsNormSlack, "y");
      for (int flags : {0, kAccumulate | kAddToOutput}) {
        CAPTURE(flags);
        Tensor dx = Tensor::Random(rng, dtype, M * C), dw = Tensor::Random(rng, Dtype::kF32, C);
        RmsNormGradients want =
            RmsNormBackward(M, C, dy.values(), x.values(), w.values(), kRmsNormEps);
        for (size_t i = 0; flags != 0 && i < want.dx.size(); ++i) {
          want.dx[i] += dx[static_cast<int64_t>(i)];
        }
        for (size_t i = 0; flags != 0 && i < want.dw.size(); ++i) {
          want.dw[i] += dw[static_cast<int64_t>(i)];
        }
        Tensor dx_again = dx, dw_again = dw;
        bench.Run(KernelId::kRmsNormBackward, {M, C}, {&dy, &x, &w, &rstd, &dx, &dw}, flags);
        bench.Run(KernelId::kRmsNormBackward, {M, C}, {&dy, &x, &w, &rstd, &dx_again, &dw_again},
                  flags);
        CheckAllClose(dx, want.dx, 8 * kRmsNormSlack, "dx");
        CheckAllClose(dw, want.dw, 16 * kRmsNormSlack, "dw");
        CHECK(dx == dx_again);
        CHECK(dw == dw_again);
      }
    }
  }
}

// Blocks take several rows at a time, many times over; the last time fewer.
TEST_CASE("rms norm backward of many rows") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(3);
  const std::vector<RmsNormCase> cases =
      kOnGpu ? std::vector<RmsNormCase>{{20'001, 64}, {5'003, 768}, {4'241, 2048}, {2'111, 3072}}
             : std::vector<RmsNormCase>{{1'003, 24}};
  for (Dtype dtype : FloatDtypes()) {
    for (const auto& [M, C] : cases) {
      CAPTURE(M);
      CAPTURE(C);
      Tensor x = Tensor::Random(rng, dtype, M * C), w = Tensor::Random(rng, dtype, C);
      Tensor dy = Tensor::Random(rng, dtype, M * C), y(dtype, M * C), rstd(Dtype::kF32, M);
      bench.Run(KernelId::kRmsNormForward, {M, C}, {&x, &w, &y, &rstd});
      Tensor dx = Tensor::Random(rng, dtype, M * C), dw(Dtype::kF32, C);
      RmsNormGradients want =
          RmsNormBackward(M, C, dy.values(), x.values(), w.values(), kRmsNormEps);
      for (size_t i = 0; i < want.dx.size(); ++i) want.dx[i] += dx[static_cast<int64_t>(i)];
      Tensor dx_again = dx, dw_again = dw;
      bench.Run(KernelId::kRmsNormBackward, {M, C}, {&dy, &x, &w, &rstd, &dx, &dw}, kAddToOutput);
      bench.Run(KernelId::kRmsNormBackward, {M, C}, {&dy, &x, &w, &rstd, &dx_again, &dw_again},
                kAddToOutput);
      CheckAllClose(dx, want.dx, 8 * kRmsNormSlack, "dx");
      // Sums of M numbers near 1 reach up to 4 sqrt(M). Of n additions one after another the k-th
      // rounds sqrt(k / n) of that, by 2^-24 of it at most; such roundings, of either sign, make
      // sqrt(n / 2) of the last one. The CPU adds M rows so. A GPU adds up to 16 rows of a group,
      // then 16 groups of a block, 17 blocks of a thread and 16 threads: where sums run beside one
      // another each is shorter by as much as they are more.
      const double additions = kOnGpu ? 16 + 16 + 17 + 16 : static_cast<double>(M);
      const double reached = 4 * std::sqrt(static_cast<double>(M));
      const double slack = std::sqrt(additions / 2) * reached * 0x1p-24;
      CheckAllClose(dw, want.dw, slack, "dw");
      CHECK(dx == dx_again);
      CHECK(dw == dw_again);
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
