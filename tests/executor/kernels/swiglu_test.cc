// SwiGLU against libm in double. Legend: M rows, F columns of y.
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

double Silu(double x) { return x / (1 + std::exp(-x)); }

struct SwigluCase {
  int64_t M, F;
};

// gu_M2F -> y_MF.
Doubles SwiGlu(const SwigluCase& c, const Doubles& gu) {
  Doubles y(gu.size() / 2);
  for (int64_t m = 0; m < c.M; ++m) {
    for (int64_t f = 0; f < c.F; ++f) {
      const double gate = gu[static_cast<size_t>(2 * m * c.F + f)];
      y[static_cast<size_t>(m * c.F + f)] =
          Silu(gate) * gu[static_cast<size_t>((2 * m + 1) * c.F + f)];
    }
  }
  return y;
}

TEST_CASE("swiglu forward and backward") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    // Odd, whole vectors, and past a block of columns.
    for (const SwigluCase& c :
         std::vector<SwigluCase>{{1, 1}, {3, 15}, {7, 16}, {5, 2064}, {2, 4100}}) {
      CAPTURE(c.M);
      CAPTURE(c.F);
      Tensor gu = Tensor::Random(rng, dtype, 2 * c.M * c.F, 2.0), y(dtype, c.M * c.F);
      const Doubles gu_before = gu.values();
      bench.Run(KernelId::kSwiGluForward, {c.M, c.F}, {&gu, &y});
      // A few roundings of numbers up to about 40, and on a GPU a fast exponential in 16 bits.
      constexpr double kSlack = 200 * 0x1p-24;
      CheckAllClose(y, SwiGlu(c, gu_before), kSlack, "y");

      Tensor dy = Tensor::Random(rng, dtype, c.M * c.F);
      bench.Run(KernelId::kSwiGluBackward, {c.M, c.F}, {&dy, &gu});
      const auto of_gu = [&](const Doubles& v) { return SwiGlu(c, v); };
      CheckGradient(rng, gu, of_gu, gu_before, dy.values(), 4 * kSlack, "dgu");
    }
  }
}

TEST_CASE("swiglu of mixed dtypes") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  const SwigluCase c{6, 24};
  Tensor gu = Tensor::Random(rng, Dtype::kBF16, 2 * c.M * c.F), y(Dtype::kF32, c.M * c.F);
  bench.Run(KernelId::kSwiGluForward, {c.M, c.F}, {&gu, &y});
  CheckAllClose(y, SwiGlu(c, gu.values()), 50 * 0x1p-24, "y");
}

TEST_CASE("swiglu far out: no NaN, right limits") {
  for (Dtype dtype : FloatDtypes()) {
    Bench bench(1);
    const std::vector<double> gates = {-6e4, -1e4, -100, -20, 0, 20, 100, 1e4, 6e4};
    const auto F = static_cast<int64_t>(gates.size());
    // Padded to whole vectors, which a GPU takes another way.
    for (const int64_t columns : {F, int64_t{16}}) {
      Tensor gu(dtype, 2 * columns), y(dtype, columns), dy(dtype, columns);
      for (int64_t i = 0; i < columns; ++i) {
        gu.Set(i, i < F ? gates[static_cast<size_t>(i)] : 0);
        gu.Set(columns + i, 1);
        dy.Set(i, 1);
      }
      const Doubles before = gu.values();
      bench.Run(KernelId::kSwiGluForward, {1, columns}, {&gu, &y});
      bench.Run(KernelId::kSwiGluBackward, {1, columns}, {&dy, &gu});
      for (int64_t i = 0; i < columns; ++i) {
        const double gate = before[static_cast<size_t>(i)];
        CAPTURE(gate);
        const double limit = gate > 0 ? gate : 0, slope = gate > 0 ? 1 : gate == 0 ? 0.5 : 0;
        CHECK(std::abs(y[i] - limit) <= 1e-6 * limit + 1e-6);
        CHECK(std::abs(gu[i] - slope) <= 1e-6);
        CHECK(std::abs(gu[columns + i] - limit) <= 1e-6 * limit + 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
