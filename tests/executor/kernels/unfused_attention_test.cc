// Attention with its probabilities in memory against double references. Legend: B micro-batch, T
// sequence, H heads of queries, G of keys and values, D head size.
#include "tests/executor/kernels/attention_reference.h"

namespace zeroplan::kernel_test {
namespace {

using Shape = AttentionShape;

// Odd and even lengths on both sides of the tiles' 48 queries and 256 keys.
const std::vector<Shape>& Shapes() {
  static const std::vector<Shape> all = {{1, 1, 1, 1, 2},   {2, 7, 3, 3, 4},    {2, 48, 2, 2, 16},
                                         {1, 49, 2, 2, 10}, {1, 130, 1, 1, 16}, {2, 257, 3, 3, 8},
                                         {2, 7, 6, 2, 4},   {1, 130, 4, 1, 10}};
  return all;
}

// Sums of up to T products of numbers near 1, in fp32.
constexpr double kUnfusedSlack = 1e-5;

struct AttentionRun {
  AttentionRun(Rng& rng, const Shape& s, Dtype dtype)
      : dims(s.dims()),
        qkv(Tensor::Random(rng, dtype, s.qkv_size())),
        out(dtype, s.out_size()),
        // Not zero before the kernel runs, above the diagonal as elsewhere.
        probs(Tensor::Random(rng, dtype, s.B * s.H * s.T * s.T)) {}

  KernelDims dims;
  Tensor qkv, out, probs;
};

void CheckProbs(const Tensor& probs, const Doubles& want) {
  if (!kOnGpu || probs.dtype() == Dtype::kF32) {
    CheckAllClose(probs, want, kUnfusedSlack, "probs");
    return;
  }
  // A GPU's library writes scores in the dtype of probs. Those of normal numbers are below about 6;
  // rounded, one is off by 6 RoundOff at most, and so is the logarithm of the sum of a row.
  for (int64_t i = 0; i < probs.size(); ++i) {
    const double p = want[static_cast<size_t>(i)];
    const double slack = kUnfusedSlack + 12 * RoundOff(probs.dtype()) * p;
    if (Close(probs[i], p, probs.dtype(), slack)) continue;
    FAIL_CHECK("probs[" << i << "] (" << DtypeName(probs.dtype()) << "): got " << probs[i]
                        << ", want " << p << ", slack " << slack);
    return;
  }
}

// The values of each row by its probabilities as they are.
Doubles Weighed(const Shape& s, const Doubles& probs, const Doubles& qkv) {
  Doubles out(static_cast<size_t>(s.out_size()));
  ForEachQuery(s, [&](int64_t b, int64_t h, int64_t q) {
    for (int64_t k = 0; k <= q; ++k) {
      const double p = probs[static_cast<size_t>(s.Probs(b, h, q) + k)];
      for (int64_t d = 0; d < s.D; ++d) {
        out[static_cast<size_t>(s.Out(b, q, h) + d)] +=
            p * qkv[static_cast<size_t>(s.Value(b, k, h) + d)];
      }
    }
  });
  return out;
}

TEST_CASE("unfused attention forward") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    for (const Shape& s : Shapes()) {
      CAPTURE(FormatDims(KernelId::kUnfusedAttentionForward, s.dims(), {}));
      AttentionRun run(rng, s, dtype);
      bench.Run(KernelId::kUnfusedAttentionForward, run.dims, {&run.qkv, &run.out, &run.probs});
      CheckProbs(run.probs, AttentionProbs(s, run.qkv.values()));
      // Values are weighed by rounded probabilities: off by up to that rounding times the largest
      // value of a row, which among a few thousand normal numbers is below 6.
      const double rounded = dtype == Dtype::kF32 ? 0 : 6 * RoundOff(dtype);
      if (!kOnGpu || dtype == Dtype::kF32) {
        CheckAllClose(run.out, Attention(s, run.qkv.values()), kUnfusedSlack + rounded, "out");
      }
      CheckAllClose(run.out, Weighed(s, run.probs.values(), run.qkv.values()), kUnfusedSlack,
                    "out");
      for (int64_t q = 0; q < s.T; ++q) {
        for (int64_t k = q + 1; k < s.T; ++k) REQUIRE(run.probs[q * s.T + k] == 0);
      }
    }
  }
}

TEST_CASE("unfused attention forward with scores far apart") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  const Shape s{1, 300, 1, 1, 8};
  AttentionRun run(rng, s, Dtype::kF32);
  run.qkv = Tensor::Random(rng, Dtype::kF32, s.qkv_size(), 6.0);
  bench.Run(KernelId::kUnfusedAttentionForward, run.dims, {&run.qkv, &run.out, &run.probs});
  // Scores up to about 150 carry an error of 150 * 8 * 2^-24 into the exponent; values reach 25.
  CheckAllClose(run.probs, AttentionProbs(s, run.qkv.values()), 2e-4, "probs");
  CheckAllClose(run.out, Attention(s, run.qkv.values()), 2e-3, "out");
}

TEST_CASE("unfused attention backward") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    for (const Shape& s : Shapes()) {
      CAPTURE(FormatDims(KernelId::kUnfusedAttentionForward, s.dims(), {}));
      AttentionRun run(rng, s, dtype);
      Tensor dout = Tensor::Random(rng, dtype, run.out.size()), dqkv(dtype, run.qkv.size());
      Tensor dprobs = Tensor::Random(rng, dtype, run.probs.size());
      bench.Run(KernelId::kUnfusedAttentionForward, run.dims, {&run.qkv, &run.out, &run.probs});
      bench.Run(KernelId::kUnfusedAttentionBackward, run.dims,
                {&dout, &run.qkv, &run.probs, &dqkv, &dprobs});
      const Doubles qkv = run.qkv.values();
      // Given the rounded probabilities, what is left in 16 bit is the rounding of the scores'
      // gradients. Those of a row add up to a few in magnitude, with random signs.
      // On a GPU the gradients of heads that share keys add up in that dtype.
      const double sums = kOnGpu ? static_cast<double>(s.Sharing()) : 1;
      const double rounded = dtype == Dtype::kF32 ? 0 : 8 * sums * RoundOff(dtype);
      CheckAllClose(dqkv, AttentionGradient(s, qkv, run.probs.values(), dout.values()),
                    4 * kUnfusedSlack + rounded, "dqkv");
      for (int64_t q = 0; q < s.T; ++q) {
        for (int64_t k = q + 1; k < s.T; ++k) REQUIRE(dprobs[q * s.T + k] == 0);
      }
      if (dtype != Dtype::kF32 || s.T > 130) continue;
      const auto f = [&](const Doubles& x) { return Attention(s, x); };
      CheckGradient(rng, dqkv, f, qkv, dout.values(), 4 * kUnfusedSlack, "dqkv");
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
