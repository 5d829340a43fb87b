// Cross-entropy against a double softmax. Legend: R rows, V vocabulary, Vp padded vocabulary.
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

Doubles Losses(int64_t V, int64_t Vp, const Doubles& logits, const std::vector<int32_t>& targets) {
  Doubles losses;
  for (size_t r = 0; r < targets.size(); ++r) {
    const double* row = logits.data() + r * static_cast<size_t>(Vp);
    double sum = 0;
    for (int64_t v = 0; v < V; ++v) sum += std::exp(row[v]);
    losses.push_back(targets[r] < 0 ? 0 : std::log(sum) - row[targets[r]]);
  }
  return losses;
}

TEST_CASE("cross-entropy: losses, gradients, ignored targets, padded columns") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    for (const auto& [R, V, Vp] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 1}, {4, 5, 8}, {9, 250, 256}, {3, 2049, 2176}}) {
      CAPTURE(R);
      CAPTURE(V);
      CAPTURE(Vp);
      // Wild numbers in the padded columns must not matter.
      Tensor logits = Tensor::Random(rng, dtype, R * Vp, 3.0);
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t v = V; v < Vp; ++v) logits.Set(r * Vp + v, 1000);
      }
      std::vector<int32_t> targets;
      for (int64_t r = 0; r < R; ++r) targets.push_back(static_cast<int32_t>(rng.Below(V)));
      if (R > 2) targets[1] = -1;
      Tensor target_tensor = Tensor::Ints(targets), loss(Dtype::kF32, R), loss2(Dtype::kF32, R);
      StepState state;
      state.grad_scale = 0.125f;
      Tensor state_tensor = Tensor::State(state);
      const Doubles before = logits.values();
      Tensor untouched = logits;
      bench.Run(KernelId::kCrossEntropy, {R, V, Vp},
                {&untouched, &target_tensor, &state_tensor, &loss2}, kForwardOnly);
      bench.Run(KernelId::kCrossEntropy, {R, V, Vp},
                {&logits, &target_tensor, &state_tensor, &loss});
      // Losses near 10: log and max each round once; the sum of exponentials is good to 1e-6.
      CheckAllClose(loss, Losses(V, Vp, before, targets), 4e-6, "loss");
      CHECK(loss == loss2);

      const auto f = [&](const Doubles& x) { return Losses(V, Vp, x, targets); };
      const Doubles weight(static_cast<size_t>(R), 0.125);
      CheckGradient(rng, logits, f, before, weight, 1e-6, "dlogits", 60);
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t v = V; v < Vp; ++v) REQUIRE(logits[r * Vp + v] == 0);
      }
    }
  }
}

TEST_CASE("cross-entropy survives large logits") {
  Bench bench(1);
  Tensor logits(Dtype::kF32, 3), targets = Tensor::Ints({2}), loss(Dtype::kF32, 1);
  for (int64_t i = 0; i < 3; ++i) logits.Set(i, 3e4 * static_cast<double>(i));
  Tensor state = Tensor::State({});
  bench.Run(KernelId::kCrossEntropy, {1, 3, 3}, {&logits, &targets, &state, &loss});
  CHECK(loss[0] == 0);
  CHECK(logits[0] == 0);
  CHECK(logits[2] == 0);
}

TEST_CASE("loss reduce: mean, and sum of means") {
  Bench bench(1);
  Tensor loss(Dtype::kF32, 4), state = Tensor::State({});
  for (int64_t i = 0; i < 4; ++i) loss.Set(i, static_cast<double>(i));
  bench.Run(KernelId::kLossReduce, {4}, {&loss, &state});
  CHECK(state.state().loss_sum == 1.5);
  bench.Run(KernelId::kLossReduce, {4}, {&loss, &state}, kAccumulate);
  CHECK(state.state().loss_sum == 3.0);
  bench.Run(KernelId::kLossReduce, {4}, {&loss, &state});
  CHECK(state.state().loss_sum == 1.5);
}

}  // namespace
}  // namespace zeroplan::kernel_test
