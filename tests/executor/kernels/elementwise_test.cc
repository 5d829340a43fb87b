// Filling, conversion between dtypes, row selection, norm.
#include <algorithm>
#include <bit>

#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

TEST_CASE("fill zeroes exactly its bytes") {
  Bench bench(2);
  for (int64_t n : {1, 63, 70'000, 300'001}) {
    Tensor t(Dtype::kU8, n + 1);
    std::memset(t.arg().data, 0x5a, static_cast<size_t>(n) + 1);
    bench.Run(KernelId::kFill, {n}, {&t});
    const char* bytes = t.arg().as<char>();
    CHECK(std::all_of(bytes, bytes + n, [](char c) { return c == 0; }));
    CHECK(bytes[n] == 0x5a);
  }
}

TEST_CASE("convert between all dtypes, written and added") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype from : FloatDtypes()) {
    for (Dtype to : FloatDtypes()) {
      for (int64_t n : {1, 17, 40'001}) {
        Tensor src = Tensor::Random(rng, from, n), dst = Tensor::Random(rng, to, n);
        Doubles sum = dst.values();
        for (int64_t i = 0; i < n; ++i) sum[static_cast<size_t>(i)] += src[i];
        bench.Run(KernelId::kConvert, {n}, {&src, &dst}, kAccumulate);
        CheckAllClose(dst, sum, 0x1p-21, "added");  // one fp32 addition of numbers below 8
        bench.Run(KernelId::kConvert, {n}, {&src, &dst});
        CheckAllClose(dst, src.values(), 0, "written");
      }
    }
  }
}

TEST_CASE("select row") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  Tensor x = Tensor::Random(rng, Dtype::kBF16, 5 * 9), row(Dtype::kF32, 9);
  StepState state;
  state.position = 3;
  Tensor state_tensor = Tensor::State(state);
  bench.Run(KernelId::kSelectRow, {9}, {&x, &state_tensor, &row});
  for (int64_t i = 0; i < 9; ++i) CHECK(row[i] == x[27 + i]);
}

TEST_CASE("norm: double sums of squares") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    for (int64_t n : {1, 31, 100'003}) {
      Tensor g = Tensor::Random(rng, dtype, n), state = Tensor::State({});
      double want = 0;
      for (int64_t i = 0; i < n; ++i) want += g[i] * g[i];
      bench.Run(KernelId::kNormSq, {n}, {&g, &state});
      CHECK(state.state().grad_norm_sq == doctest::Approx(want).epsilon(1e-12));
      bench.Run(KernelId::kNormSq, {n}, {&g, &state}, kAccumulate);
      CHECK(state.state().grad_norm_sq == doctest::Approx(2 * want).epsilon(1e-12));
    }
  }
  // Squares beyond fp32's range, and infinity.
  Tensor g(Dtype::kF32, 3), state = Tensor::State({});
  for (int64_t i = 0; i < 3; ++i) g.Set(i, 1e30);
  bench.Run(KernelId::kNormSq, {3}, {&g, &state});
  CHECK(state.state().grad_norm_sq == doctest::Approx(3e60));
  g.Set(1, INFINITY);
  bench.Run(KernelId::kNormSq, {3}, {&g, &state});
  CHECK_FALSE(std::isfinite(state.state().grad_norm_sq));
}

}  // namespace
}  // namespace zeroplan::kernel_test
