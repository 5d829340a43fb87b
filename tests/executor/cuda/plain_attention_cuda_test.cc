// Our own attention kernels at every head size they tell apart. Legend: B micro-batch, T sequence,
// H heads of queries, G of keys and values, D head size.
#include "executor/kernels/cuda/attention/attention_kernels.h"
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
         {AttentionShape{1, 1, 2, 2, 4}, AttentionShape{2, 63, 2, 2, 7},
          AttentionShape{1, 65, 1, 1, 64}, AttentionShape{1, 200, 2, 2, 65},
          AttentionShape{2, 64, 1, 1, 128}, AttentionShape{1, 129, 1, 1, 100},
          AttentionShape{1, 33, 2, 2, 129}, AttentionShape{1, 70, 1, 1, 256},
          AttentionShape{1, 97, 1, 1, 200}, AttentionShape{2, 70, 6, 2, 64},
          AttentionShape{1, 65, 4, 1, 130}}) {
      CAPTURE(DtypeName(dtype));
      const KernelDims dims = s.dims();
      CAPTURE(FormatDims(KernelId::kAttentionForward, dims, {}));
      Tensor qkv = Tensor::Random(rng, dtype, s.qkv_size()), out(dtype, s.out_size());
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
      const double root_d = std::sqrt(static_cast<double>(s.D));
      const double rounded = dtype == Dtype::kF32 ? 0 : (4 + 0.5 * root_d) * RoundOff(dtype);
      CheckAllClose(
          dqkv, AttentionGradient(s, qkv.values(), AttentionProbs(s, qkv.values()), dout.values()),
          4 * kSlack + rounded, "dqkv");
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
