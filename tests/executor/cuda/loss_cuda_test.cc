// Cross-entropy at real vocabularies. Legend: R rows, V vocabulary, Vp padded vocabulary.
#include <array>

#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

void CheckLoss(Rng& rng, Dtype dtype, int64_t R, int64_t V, int64_t Vp) {
  CAPTURE(DtypeName(dtype));
  CAPTURE(R);
  CAPTURE(V);
  CAPTURE(Vp);
  Bench bench(1);
  const Tensor before = Tensor::Random(rng, dtype, R * Vp, 3.0);
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < R; ++r) {
    ids.push_back(r % 5 == 3 ? -1 : static_cast<int32_t>(rng.Below(V)));
  }
  ids[0] = static_cast<int32_t>(V - 1);
  StepState start;
  start.grad_scale = 0.5f;
  Tensor logits = before, again = before, targets = Tensor::Ints(ids), state = Tensor::State(start);
  Tensor loss(Dtype::kF32, R), loss2(Dtype::kF32, R);
  bench.Run(KernelId::kCrossEntropy, {R, V, Vp}, {&logits, &targets, &state, &loss});
  bench.Run(KernelId::kCrossEntropy, {R, V, Vp}, {&again, &targets, &state, &loss2});
  CHECK(again == logits);
  CHECK(loss2 == loss);
  for (int64_t r = 0; r < R; ++r) {
    CAPTURE(r);
    const int32_t target = ids[static_cast<size_t>(r)];
    double sum = 0;
    for (int64_t v = 0; v < V; ++v) sum += std::exp(before[r * Vp + v]);
    const double want = target < 0 ? 0 : std::log(sum) - before[r * Vp + target];
    // As in the test of small vocabularies: a few roundings of numbers near 12.
    CHECK(Close(loss[r], want, Dtype::kF32, 4e-6));
    if (R > 16 && r % (R / 8) != 0 && r + 1 != R) continue;  // of many rows some
    for (int64_t v = 0; v < Vp; ++v) {
      double d = 0;
      if (target >= 0 && v < V) {
        d = (std::exp(before[r * Vp + v]) / sum - (v == target ? 1 : 0)) * 0.5;
      }
      CAPTURE(v);
      // The GPU's fast exponential is off by 2 + 1.2 |x| units of 2^-23; where x is below -20 the
      // result is below 1e-9. Sum and quotient add a few units.
      REQUIRE(Close(logits[r * Vp + v], d, dtype, 4e-6 * std::abs(d) + 1e-9));
    }
  }
}

TEST_CASE("gpu cross-entropy: real vocabularies") {
  ZEROPLAN_TEST_RNG(rng);
  for (Dtype dtype : FloatDtypes()) CheckLoss(rng, dtype, 7, 50257, 50304);
  for (Dtype dtype : FloatDtypes()) CheckLoss(rng, dtype, 5, 151936, 152064);
  CheckLoss(rng, Dtype::kBF16, 5, 50257, 50257);  // rows that are not aligned
  CheckLoss(rng, Dtype::kBF16, 3, 16, 2048);      // rows for a warp, almost all padding
  CheckLoss(rng, Dtype::kBF16, 1000, 256, 256);
}

// A block, or a cluster of two or four, takes two rows or three, one after the other.
TEST_CASE("gpu cross-entropy: many rows of real vocabularies") {
  ZEROPLAN_TEST_RNG(rng);
  CheckLoss(rng, Dtype::kBF16, 560, 32000, 32000);
  CheckLoss(rng, Dtype::kF16, 270, 50257, 50304);
  CheckLoss(rng, Dtype::kBF16, 140, 128256, 128256);
  CheckLoss(rng, Dtype::kF32, 70, 50257, 50304);
  CheckLoss(rng, Dtype::kF32, 64, 128256, 128256);
  CheckLoss(rng, Dtype::kBF16, 64, 262144, 262208);
}

TEST_CASE("gpu cross-entropy: rows that are mostly padding, and at the borders of its layouts") {
  ZEROPLAN_TEST_RNG(rng);
  CheckLoss(rng, Dtype::kBF16, 3, 20001, 65536);
  CheckLoss(rng, Dtype::kBF16, 3, 7, 131072);
  // Bytes of a row: 60, 80, 160, 320 and 640 KiB, and one piece more.
  for (int64_t Vp : {30712, 30720, 40960, 40968, 81920, 81928, 163840, 163848, 327680}) {
    CheckLoss(rng, Dtype::kBF16, 3, Vp - 3, Vp);
  }
}

TEST_CASE("gpu loss reduce: many rows") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  Tensor loss = Tensor::Random(rng, Dtype::kF32, 100'003), state = Tensor::State({});
  double sum = 0;
  for (int64_t i = 0; i < loss.size(); ++i) sum += loss[i];
  bench.Run(KernelId::kLossReduce, {loss.size()}, {&loss, &state});
  // Double sums in another order.
  CHECK(state.state().loss_sum ==
        doctest::Approx(sum / static_cast<double>(loss.size())).epsilon(1e-9));
}

}  // namespace
}  // namespace zeroplan::kernel_test
