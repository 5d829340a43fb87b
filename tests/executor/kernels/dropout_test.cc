// Dropout against the rule that says what it drops.
#include "executor/kernels/dropout.h"

#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

struct Dropped {
  int64_t M, K, T, tensor = 3, number = 5;
  float p = 0.3f;

  Tensor Run(Bench& bench, Tensor x, Tensor y, int flags = 0) const {
    bench.scalars = KernelScalars{p};
    Tensor number_2 =
        Tensor::Ints({static_cast<int32_t>(number), static_cast<int32_t>(number >> 32)});
    bench.Run(KernelId::kDropout, {M, K, T, tensor}, {&x, &number_2, &y}, flags);
    return y;
  }
};

TEST_CASE("dropout: what the rule keeps is scaled, the rest 0; written and added") {
  ZEROPLAN_TEST_RNG(rng);
  for (const int threads : {1, 3}) {
    Bench bench(threads);
    for (const Dropped& d : {Dropped{6, 301, 3}, Dropped{40, 512, 8, 70, (int64_t{1} << 33) + 7},
                             Dropped{1, 7, 1}, Dropped{9, 2056, 3, 0, 0, 0.9f}}) {
      for (const Dtype from : FloatDtypes()) {
        for (const Dtype to : FloatDtypes()) {
          CAPTURE(d.K);
          CAPTURE(DtypeName(from));
          CAPTURE(DtypeName(to));
          Tensor x(from, d.M * d.K), old = Tensor::Random(rng, to, d.M * d.K);
          for (int64_t i = 0; i < x.size(); ++i) x.Set(i, 1 + std::abs(rng.Normal()));
          const DropRule rule = DropRuleOf(d.p);
          CHECK(double{rule.scale} * (1 - double{d.p}) == doctest::Approx(1).epsilon(1e-4));
          Doubles want(static_cast<size_t>(x.size())), sum = old.values();
          for (int64_t i = 0; i < x.size(); ++i) {
            const int64_t m = i / d.K, c = i % d.K;
            const PhiloxBlock words =
                DropWords(bench.seed, static_cast<uint64_t>(d.number + m / d.T),
                          static_cast<uint32_t>(m % d.T), static_cast<uint32_t>(d.tensor),
                          static_cast<uint32_t>(c / kDropColumns));
            const auto at = static_cast<size_t>(i);
            want[at] = Keeps(rule, words, c % kDropColumns) ? x[i] * double{rule.scale} : 0;
            sum[at] += want[at];
          }
          const Tensor y = d.Run(bench, x, old);
          CheckAllClose(y, want, 1e-5, "written");
          for (int64_t i = 0; i < y.size(); ++i)
            CHECK((y[i] == 0) == (want[static_cast<size_t>(i)] == 0));
          CheckAllClose(d.Run(bench, x, old, kAccumulate), sum, 1e-5, "added");
        }
      }
    }
  }
}

TEST_CASE("dropout: drops the share it is asked for, elsewhere each time, wherever rows are cut") {
  Bench bench(2);
  const Dropped all{64, 1024, 8};
  Tensor ones(Dtype::kF32, all.M * all.K);
  for (int64_t i = 0; i < ones.size(); ++i) ones.Set(i, 1);
  const auto run = [&](const Dropped& d) {
    return d.Run(bench, ones, Tensor(Dtype::kF32, ones.size()));
  };
  const auto share = [&](auto&& holds) {
    int64_t count = 0;
    for (int64_t i = 0; i < ones.size(); ++i) count += holds(i) ? 1 : 0;
    return static_cast<double>(count) / static_cast<double>(ones.size());
  };
  const auto near = [](double p) { return doctest::Approx(p).epsilon(0.02); };  // 5 deviations
  const Tensor y = run(all);
  CHECK(share([&](int64_t i) { return y[i] == 0; }) == near(0.3));
  Dropped tensor = all, sequence = all;
  ++tensor.tensor;
  sequence.number += 100;
  for (const Dropped& other : {tensor, sequence}) {
    const Tensor z = run(other);
    CHECK(share([&](int64_t i) { return (y[i] == 0) == (z[i] == 0); }) == near(0.58));
  }
  for (const int64_t step : {int64_t{1}, all.K, all.T * all.K}) {  // columns, positions, sequences
    const auto as_next = [&](int64_t i) {
      return (y[i] == 0) == (y[(i + step) % ones.size()] == 0);
    };
    CHECK(share(as_next) == near(0.58));
  }
  // The second half of the sequences as a batch of their own.
  Dropped half = all;
  half.M /= 2;
  half.number += half.M / half.T;
  Tensor x(Dtype::kF32, half.M * half.K);
  for (int64_t i = 0; i < x.size(); ++i) x.Set(i, 1);
  const Tensor z = half.Run(bench, x, x);
  for (int64_t i = 0; i < z.size(); ++i) REQUIRE(z[i] == y[half.M * half.K + i]);
  Dropped none = all;
  none.p = 0;
  CHECK(run(none) == ones);
}

}  // namespace
}  // namespace zeroplan::kernel_test
