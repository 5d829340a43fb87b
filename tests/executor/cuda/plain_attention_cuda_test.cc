// Our own attention kernels at every head size they tell apart. Legend: B micro-batch, T sequence,
// C hidden, H heads, D = C/H.
#include "executor/kernels/cuda/attention/plain_attention.h"
#include "tests/executor/kernels/attention_reference.h"

namespace zeroplan::kernel_test {
namespace {

// Sums of up to T (or D) products of numbers near 1, in fp32.
constexpr double kSlack = 1e-5;

TEST_CASE("gpu plain attention: head sizes and lengths at the tiles' borders") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (const AttentionShape& s :
         {AttentionShape{1, 1, 8, 2}, AttentionShape{2, 63, 14, 2}, AttentionShape{1, 65, 64, 1},
          AttentionShape{1, 200, 130, 2}, AttentionShape{2, 64, 128, 1},
          AttentionShape{1, 129, 100, 1}, AttentionShape{1, 33, 258, 2},
          AttentionShape{1, 70, 256, 1}, AttentionShape{1, 97, 200, 1}}) {
      CAPTURE(DtypeName(dtype));
      CAPTURE(s.B);
      CAPTURE(s.T);
      CAPTURE(s.C);
      CAPTURE(s.H);
      const KernelDims dims = {s.B, s.T, s.C, s.H};
      Tensor qkv = Tensor::Random(rng, dtype, s.B * s.T * 3 * s.C), out(dtype, s.B * s.T * s.C);
      Tensor lse(Dtype::kF32, s.B * s.H * s.T), dout = Tensor::Random(rng, dtype, out.size());
      bench.Run(KernelId::kAttentionForward, dims, {&qkv, &out, &lse}, 0,
                cuda::PlainAttentionForward);
      Doubles want_lse;
      CheckAllClose(out, Attention(s, qkv.values(), &want_lse), kSlack, "out");
      CheckAllClose(lse, want_lse, kSlack, "lse");

      Tensor dqkv = Tensor::Random(rng, dtype, qkv.size()), again = dqkv;
      bench.Run(KernelId::kAttentionBackward, dims, {&dout, &qkv, &out, &lse, &dqkv}, 0,
                cuda::PlainAttentionBackward);
      bench.Run(KernelId::kAttentionBackward, dims, {&dout, &qkv, &out, &lse, &again}, 0,
                cuda::PlainAttentionBackward);
      CHECK(dqkv == again);
      // In 16 bit the saved `out` is rounded: sum_D dout * out is off by up to sqrt(D) such
      // roundings, and ds with it, for each of the queries that a key meets.
      const double root_d = std::sqrt(static_cast<double>(s.C / s.H));
      const double rounded = dtype == Dtype::kF32 ? 0 : (4 + 0.5 * root_d) * RoundOff(dtype);
      CheckAllClose(
          dqkv, AttentionGradient(s, qkv.values(), AttentionProbs(s, qkv.values()), dout.values()),
          4 * kSlack + rounded, "dqkv");
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
