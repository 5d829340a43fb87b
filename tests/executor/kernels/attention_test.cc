// Causal attention against a double reference that makes whole rows of scores, and its finite
// differences. Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head
// size.
#include "tests/executor/kernels/attention_reference.h"
#include "tests/executor/kernels/sampled_attention.h"

namespace zeroplan::kernel_test {
namespace {

using Shape = AttentionShape;

// Sums of up to T products of numbers near 1, in fp32.
constexpr double kAttentionSlack = 1e-5;

// The GPU's fused kernels round probabilities to 16 bit before they weigh the values: off by up to
// that rounding times the largest value of a row, which among a few thousand normal numbers is
// below 6.
double RoundedProbabilities(Dtype dtype) {
  return kOnGpu && dtype != Dtype::kF32 ? 6 * RoundOff(dtype) : 0;
}

TEST_CASE("attention forward") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    // Lengths on both sides of the tiles' 64 and 256.
    for (const Shape& s : {Shape{1, 1, 1, 1, 2}, Shape{2, 7, 3, 3, 4}, Shape{2, 64, 2, 2, 16},
                           Shape{1, 65, 2, 2, 10}, Shape{1, 257, 1, 1, 16}, Shape{1, 600, 3, 3, 8},
                           Shape{2, 7, 6, 2, 4}, Shape{1, 70, 4, 1, 10}, Shape{2, 130, 15, 3, 5}}) {
      CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
      Tensor qkv = Tensor::Random(rng, dtype, s.qkv_size()), out(dtype, s.out_size());
      Tensor lse(Dtype::kF32, s.B * s.H * s.T);
      bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse});
      Doubles want_lse;
      CheckAllClose(out, Attention(s, qkv.values(), &want_lse),
                    kAttentionSlack + RoundedProbabilities(dtype), "out");
      CheckAllClose(lse, want_lse, kAttentionSlack, "lse");
    }
  }
}

TEST_CASE("attention forward with scores far apart") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  const Shape s{1, 300, 1, 1, 8};
  Tensor qkv = Tensor::Random(rng, Dtype::kF32, s.qkv_size(), 6.0), out(Dtype::kF32, s.out_size());
  Tensor lse(Dtype::kF32, s.T);
  bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse});
  Doubles want_lse;
  // Scores up to about 150 carry an error of 150 * 8 * 2^-24 into the exponent; values reach 25.
  CheckAllClose(out, Attention(s, qkv.values(), &want_lse), 2e-3, "out");
  CheckAllClose(lse, want_lse, 1e-4, "lse");
}

TEST_CASE("attention of a few hundred tokens, sampled queries and keys") {
  ZEROPLAN_TEST_RNG(rng);
  SampledAttention({2, 512, 4, 2, 128}, rng).CheckSamples(rng);
}

TEST_CASE("attention backward against finite differences") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    for (const Shape& s : {Shape{1, 1, 1, 1, 2}, Shape{2, 7, 3, 3, 4}, Shape{1, 65, 2, 2, 10},
                           Shape{1, 130, 1, 1, 16}, Shape{2, 7, 6, 2, 4}, Shape{1, 65, 4, 1, 10}}) {
      CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
      Tensor qkv = Tensor::Random(rng, dtype, s.qkv_size()), out(dtype, s.out_size());
      Tensor lse(Dtype::kF32, s.B * s.H * s.T), dout = Tensor::Random(rng, dtype, out.size());
      Tensor dqkv(dtype, qkv.size());
      bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse});
      bench.Run(KernelId::kAttentionBackward, s.dims(), {&dout, &qkv, &out, &lse, &dqkv});
      const auto f = [&](const Doubles& x) { return Attention(s, x); };
      // The saved `out` is rounded: sum_D dout * out is then off by about that rounding, and ds
      // with it, for each of up to T queries that a key meets.
      const double rounded =
          (dtype == Dtype::kF32 ? 0 : 4 * RoundOff(dtype)) + RoundedProbabilities(dtype);
      CheckGradient(rng, dqkv, f, qkv.values(), dout.values(), 4 * kAttentionSlack + rounded,
                    "dqkv");
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
