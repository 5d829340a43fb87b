// AdamW against double arithmetic straight from the paper's formulas (Loshchilov and Hutter, 2019).
#include <doctest/doctest.h>

#include <algorithm>

#include "executor/kernels/adamw_update.h"
#include "tests/executor/kernels/unit_fixture.h"

namespace zeroplan::kernel_test {
namespace {

StepState TestState() {
  StepState state;
  state.lr = 0.01f;
  state.grad_factor = 0.25f;
  state.bias_correction1 = 1 - 0.9f * 0.9f;
  state.bias_correction2 = 1 - 0.99f * 0.99f;
  return state;
}

OptimizerConfig TestOptimizer(bool adam_w_mode) {
  OptimizerConfig config;
  config.betas = {0.9, 0.99};
  config.eps = 1e-6;
  config.weight_decay = 0.1;
  config.adam_w_mode = adam_w_mode;
  return config;
}

struct Values {
  double p, m, v;
};
Values Reference(const OptimizerConfig& c, const StepState& s, bool decays, double grad, Values x) {
  const double decay = decays ? c.weight_decay : 0, lr = static_cast<double>(s.lr);
  double g = grad * static_cast<double>(s.grad_factor);
  if (!c.adam_w_mode) g += decay * x.p;
  x.m = c.betas[0] * x.m + (1 - c.betas[0]) * g;
  x.v = c.betas[1] * x.v + (1 - c.betas[1]) * g * g;
  const double m_hat = x.m / static_cast<double>(s.bias_correction1);
  const double v_hat = x.v / static_cast<double>(s.bias_correction2);
  const double step = m_hat / (std::sqrt(v_hat) + c.eps) + (c.adam_w_mode ? decay * x.p : 0);
  x.p -= lr * step;
  return x;
}

struct Arrays {
  Tensor grad, master, m, v, param;
  Arrays(Rng& rng, Dtype grad_dtype, Dtype param_dtype, int64_t n)
      : grad(Tensor::Random(rng, grad_dtype, n)),
        master(Tensor::Random(rng, Dtype::kF32, n)),
        m(Tensor::Random(rng, Dtype::kF32, n)),
        v(Tensor::Random(rng, Dtype::kF32, n)),
        param(Tensor::Random(rng, param_dtype, n)) {
    // Away from 0, where m / sqrt(v) would magnify the roundings of v without bound.
    for (int64_t i = 0; i < n; ++i) v.Set(i, v[i] * v[i] + 0.01);
  }
  void Step(Bench& bench, StepState state, int64_t begin, bool with_param, int flags) {
    Tensor state_tensor = Tensor::State(state);
    bench.Run(KernelId::kAdamW, {master.size(), 0, begin},
              {&grad, &state_tensor, &master, &m, &v, with_param ? &param : nullptr}, flags);
  }
};

TEST_CASE("adamw: formulas, decay by tensor, padding untouched, ranks and offsets") {
  ZEROPLAN_TEST_RNG(rng);
  for (Dtype grad_dtype : FloatDtypes()) {
    for (Dtype param_dtype : FloatDtypes()) {
      for (bool adam_w_mode : {true, false}) {
        for (int rank : {0, 1, 2}) {
          Bench bench(2);
          bench.program.layout = TestLayout(3);
          bench.program.setup.optimizer = TestOptimizer(adam_w_mode);
          bench.rank = rank;
          const Unit& unit = bench.program.layout.units[0];
          const int64_t begin = 64;
          const int64_t n = static_cast<int64_t>(unit.shard_elements) - begin - 3;
          Arrays a(rng, grad_dtype, param_dtype, n);
          const Arrays before = a;
          const bool with_param = rank != 1;
          a.Step(bench, TestState(), begin, with_param, kOnRank);
          for (int64_t i = 0; i < n; ++i) {
            const uint64_t position = static_cast<uint64_t>(rank) * unit.shard_elements +
                                      static_cast<uint64_t>(begin + i);
            const TensorSlot* slot = SlotAt(unit, position);
            Values want = {before.master[i], before.m[i], before.v[i]};
            if (slot != nullptr) {
              const bool decays = slot->tensor == 0 || slot->tensor == 2;
              want = Reference(bench.program.setup.optimizer, TestState(), decays, before.grad[i],
                               want);
            }
            CAPTURE(i);
            // About ten fp32 roundings of numbers near 1 (v of gradients near 3: a little more).
            constexpr double kSlack = 12 * 0x1p-24;
            REQUIRE(Close(a.master[i], want.p, Dtype::kF32, kSlack * (1 + std::abs(want.p))));
            REQUIRE(Close(a.m[i], want.m, Dtype::kF32, kSlack));
            REQUIRE(Close(a.v[i], want.v, Dtype::kF32, kSlack * (1 + want.v)));
            if (slot == nullptr) REQUIRE(a.master[i] == before.master[i]);
            REQUIRE(Close(a.param[i], with_param ? a.master[i] : before.param[i], param_dtype, 0));
          }
        }
      }
    }
  }
}

TEST_CASE("adamw: a skipped step changes nothing but writes the parameter") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  bench.program.layout = TestLayout(1);
  Arrays a(rng, Dtype::kF16, Dtype::kF16, 2000);
  for (int64_t i = 0; i < 2000; ++i) a.grad.Set(i, NAN);
  const Arrays before = a;
  StepState state = TestState();
  state.skip = 1;
  a.Step(bench, state, 0, true, 0);
  CHECK(a.master == before.master);
  CHECK(a.m == before.m);
  CHECK(a.v == before.v);
  for (int64_t i = 0; i < 2000; ++i) REQUIRE(Close(a.param[i], a.master[i], Dtype::kF16, 0));
  a.Step(bench, state, 0, false, 0);
  CHECK(a.master == before.master);
}

// The same unit updated at once and in pieces of an odd size, on different numbers of threads.
TEST_CASE("adamw: the same bits whatever the pieces") {
  ZEROPLAN_TEST_RNG(rng);
  Bench one(1), three(3);
  one.program.layout = three.program.layout = TestLayout(1);
  one.program.setup.optimizer = three.program.setup.optimizer = TestOptimizer(true);
  const auto n = static_cast<int64_t>(one.program.layout.units[0].padded_elements);
  Arrays whole(rng, Dtype::kF32, Dtype::kBF16, n);
  const Arrays before = whole;
  whole.Step(one, TestState(), 0, true, 0);
  for (int64_t begin = 0, size = 1; begin < n; begin += size, size = size * 2 + 1) {
    size = std::min(size, n - begin);
    Arrays piece(rng, Dtype::kF32, Dtype::kBF16, size);
    for (int64_t i = 0; i < size; ++i) {
      piece.grad.Set(i, before.grad[begin + i]);
      piece.master.Set(i, before.master[begin + i]);
      piece.m.Set(i, before.m[begin + i]);
      piece.v.Set(i, before.v[begin + i]);
    }
    piece.Step(three, TestState(), begin, true, 0);
    for (int64_t i = 0; i < size; ++i) {
      CAPTURE(begin + i);
      REQUIRE(piece.master[i] == whole.master[begin + i]);
      REQUIRE(piece.m[i] == whole.m[begin + i]);
      REQUIRE(piece.v[i] == whole.v[begin + i]);
      REQUIRE(piece.param[i] == whole.param[begin + i]);
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
