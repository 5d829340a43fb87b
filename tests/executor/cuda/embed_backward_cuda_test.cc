// Embedding gradients where tokens repeat as in real text. Legend: B micro-batch, T sequence, C
// hidden, V vocabulary.
#include <functional>

#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

void CheckEmbedBackward(Rng& rng, int64_t B, int64_t T, int64_t C, int64_t V, Dtype dtype,
                        Dtype grad, const std::function<int64_t()>& token) {
  CAPTURE(B);
  CAPTURE(T);
  CAPTURE(C);
  CAPTURE(V);
  Bench bench(1);
  std::vector<int32_t> ids;
  std::vector<double> counts(static_cast<size_t>(V));
  for (int64_t i = 0; i < B * T; ++i) {
    ids.push_back(static_cast<int32_t>(token()));
    ++counts[static_cast<size_t>(ids.back())];
  }
  Tensor tokens = Tensor::Ints(ids), dx = Tensor::Random(rng, dtype, B * T * C);
  const Tensor dwte_before = Tensor::Random(rng, grad, V * C);
  Tensor dwte = dwte_before, dwpe(grad, T * C), dwte2 = dwte_before, dwpe2(grad, T * C);
  bench.Run(KernelId::kEmbedBackward, {B, T, C, V}, {&tokens, &dx, &dwte, &dwpe});
  bench.Run(KernelId::kEmbedBackward, {B, T, C, V}, {&tokens, &dx, &dwte2, &dwpe2});
  CHECK(dwte == dwte2);
  CHECK(dwpe == dwpe2);

  Doubles want = dwte_before.values(), want_pe(static_cast<size_t>(T * C));
  for (int64_t i = 0; i < B * T; ++i) {
    for (int64_t c = 0; c < C; ++c) {
      const double d = dx[i * C + c];
      want[static_cast<size_t>(ids[static_cast<size_t>(i)] * C + c)] += d;
      want_pe[static_cast<size_t>(i % T * C + c)] += d;
    }
  }
  // n numbers near 1 with random signs: partial sums reach a few sqrt(n), each addition rounds by
  // 2^-24 of that, and n roundings grow like sqrt(n).
  for (int64_t i = 0; i < V * C; ++i) {
    const double n = counts[static_cast<size_t>(i / C)];
    const double slack = (4 * n + 16) * 0x1p-24;
    CAPTURE(i / C);
    CAPTURE(i % C);
    REQUIRE(Close(dwte[i], want[static_cast<size_t>(i)], grad, slack));
  }
  CheckAllClose(dwpe, want_pe, (4 * static_cast<double>(B) + 16) * 0x1p-24, "dwpe");
}

TEST_CASE("gpu embedding backward: one token, few tokens, text-like tokens") {
  ZEROPLAN_TEST_RNG(rng);
  const auto zipf = [&](int64_t V) {  // about 1 / (rank + 1)
    const double u = static_cast<double>(rng.Below(1 << 30)) / (1 << 30);
    return static_cast<int64_t>(std::pow(static_cast<double>(V) + 1, u)) - 1;
  };
  for (int64_t C : {64, 40, 33}) {
    CheckEmbedBackward(rng, 8, 512, C, 300, Dtype::kBF16, Dtype::kF32, [] { return 7; });
    CheckEmbedBackward(rng, 8, 512, C, 300, Dtype::kF32, Dtype::kF32,
                       [&] { return 250 + rng.Below(2); });
    CheckEmbedBackward(rng, 4, 500, C, 1000, Dtype::kBF16, Dtype::kBF16,
                       [&] { return zipf(1000); });
    CheckEmbedBackward(rng, 3, 333, C, 300, Dtype::kF16, Dtype::kF16,
                       [&] { return rng.Below(300); });
  }
  CheckEmbedBackward(rng, 1, 40, 768, 50257, Dtype::kBF16, Dtype::kF32,
                     [&] { return rng.Below(50257); });
  // Columns that fill no whole number of warps, in each pair of dtypes that has vectors.
  for (Dtype dtype : FloatDtypes()) {
    CheckEmbedBackward(rng, 3, 333, 1600, 500, dtype, dtype, [&] { return zipf(500); });
    CheckEmbedBackward(rng, 3, 333, 264, 500, dtype, Dtype::kF32, [&] { return zipf(500); });
  }
  CheckEmbedBackward(rng, 3, 333, 264, 500, Dtype::kF32, Dtype::kBF16, [&] { return zipf(500); });
}

// Segments of 32, 64 and 256 positions; every run crosses borders at other places.
TEST_CASE("gpu embedding backward: many positions") {
  ZEROPLAN_TEST_RNG(rng);
  CheckEmbedBackward(rng, 32, 1024, 8, 256, Dtype::kBF16, Dtype::kF32,
                     [&] { return rng.Below(4) == 0 ? rng.Below(256) : 32; });
  CheckEmbedBackward(rng, 128, 1024, 8, 5, Dtype::kBF16, Dtype::kF32, [&] { return rng.Below(5); });
}

}  // namespace
}  // namespace zeroplan::kernel_test
