// GELU (tanh form) against libm in double.
#include "tests/executor/kernels/gelu_reference.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

Doubles Gelus(const Doubles& x) {
  Doubles y;
  for (double v : x) y.push_back(Gelu(v));
  return y;
}

TEST_CASE("gelu forward and backward") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    for (int64_t n : {1, 15, 16, 1025, 9001}) {
      CAPTURE(n);
      Tensor x = Tensor::Random(rng, dtype, n, 2.0), y(dtype, n);
      bench.Run(KernelId::kGeluForward, {n}, {&x, &y});
      // A few roundings of numbers up to about 10.
      constexpr double kSlack = 20 * 0x1p-24;
      CheckAllClose(y, Gelus(x.values()), kSlack, "y");

      Tensor d = Tensor::Random(rng, dtype, n);
      const Doubles d_in = d.values();
      bench.Run(KernelId::kGeluBackward, {n}, {&x, &d});
      CheckGradient(rng, d, Gelus, x.values(), d_in, 4 * kSlack, "d");
    }
  }
}

TEST_CASE("gelu far out: no NaN, right limits") {
  Bench bench(1);
  const std::vector<double> points = {-1e30, -1e10, -100, -20, -10, 0, 10, 20, 100, 1e10, 1e30};
  Tensor x(Dtype::kF32, static_cast<int64_t>(points.size())), y = x, d = x;
  for (size_t i = 0; i < points.size(); ++i) {
    x.Set(static_cast<int64_t>(i), points[i]);
    d.Set(static_cast<int64_t>(i), 1);
  }
  bench.Run(KernelId::kGeluForward, {x.size()}, {&x, &y});
  bench.Run(KernelId::kGeluBackward, {x.size()}, {&x, &d});
  for (int64_t i = 0; i < x.size(); ++i) {
    CAPTURE(x[i]);
    const double limit = x[i] > 0 ? 1 : 0;
    CHECK(std::abs(y[i] - limit * x[i]) <= 1e-6 * std::abs(limit * x[i]) + 1e-30);
    CHECK(std::abs(d[i] - (x[i] == 0 ? 0.5 : limit)) <= 1e-6);
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
