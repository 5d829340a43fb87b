// Fused attention at a training size, where whole references would take too long: sampled queries
// in double. Legend: B micro-batch, T sequence, C hidden, H heads, D = C/H.
#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "tests/executor/cuda/gpu_runner.h"
#include "tests/executor/kernels/attention_reference.h"

namespace zeroplan::kernel_test {
namespace {

constexpr int64_t kB = 16, kT = 1024, kH = 25, kD = 64, kC = kH * kD;

// Numbers from a short table: 79 million normal ones would take longer than the test.
Tensor Make(Rng& rng, int64_t n, double std) {
  std::vector<double> table(8191);
  for (double& v : table) v = rng.Normal(std);
  Tensor t(Dtype::kBF16, n);
  for (int64_t i = 0; i < n; ++i) t.Set(i, table[static_cast<size_t>((i + i / 8191) % 8191)]);
  return t;
}

double At(const Tensor& qkv, int64_t b, int64_t t, int part, int64_t h, int64_t d) {
  return qkv[(b * kT + t) * 3 * kC + part * kC + h * kD + d];
}

// The probabilities of a query; their lse.
Doubles Probabilities(const Tensor& qkv, int64_t b, int64_t h, int64_t q, double* lse) {
  Doubles p(static_cast<size_t>(q + 1));
  double sum = 0;
  for (int64_t k = 0; k <= q; ++k) {
    double score = 0;
    for (int64_t d = 0; d < kD; ++d) score += At(qkv, b, q, 0, h, d) * At(qkv, b, k, 1, h, d);
    sum += p[static_cast<size_t>(k)] = std::exp(score / std::sqrt(double{kD}));
  }
  for (double& value : p) value /= sum;
  *lse = std::log(sum);
  return p;
}

TEST_CASE("gpu attention: GPT-2 1.6B's shape, sampled queries") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  const KernelDims dims = {kB, kT, kH, kH, kD};
  Tensor qkv = Make(rng, kB * kT * 3 * kC, 1.0), out(Dtype::kBF16, kB * kT * kC);
  Tensor lse(Dtype::kF32, kB * kH * kT), dout = Make(rng, kB * kT * kC, 1.0);
  Tensor dqkv(Dtype::kBF16, kB * kT * 3 * kC);
  bench.Run(KernelId::kAttentionForward, dims, {&qkv, &out, &lse});
  bench.Run(KernelId::kAttentionBackward, dims, {&dout, &qkv, &out, &lse, &dqkv});
  for (int sample = 0; sample < 60; ++sample) {
    const int64_t b = rng.Below(kB), h = rng.Below(kH);
    const int64_t q = sample == 0 ? 0 : sample == 1 ? kT - 1 : rng.Below(kT);
    CAPTURE(b);
    CAPTURE(h);
    CAPTURE(q);
    double want_lse = 0;
    const Doubles p = Probabilities(qkv, b, h, q, &want_lse);
    // Scores are sums of 64 terms near 1 in fp32, about |8| before the logarithm.
    CHECK(Close(lse[(b * kH + h) * kT + q], want_lse, Dtype::kF32, 1e-4));
    Doubles dp(p.size());
    double delta = 0, out_gap = 0, dq_gap = 0, dq_bound = 0;
    for (int64_t d = 0; d < kD; ++d) {
      double want = 0, weight = 0;
      for (size_t k = 0; k < p.size(); ++k) {
        const double v = At(qkv, b, static_cast<int64_t>(k), 2, h, d);
        want += p[k] * v;
        weight += p[k] * std::abs(v);
        dp[k] += v * dout[(b * kT + q) * kC + h * kD + d];
      }
      // Probabilities are rounded to bf16 before they weigh the values.
      const double gap = std::abs(out[(b * kT + q) * kC + h * kD + d] - want) -
                         RoundOff(Dtype::kBF16) * (std::abs(want) + weight) - 1e-5;
      out_gap = std::max(out_gap, gap);
    }
    CHECK_MESSAGE(out_gap <= 0, "out is off by " << out_gap << " more than rounding");
    for (size_t k = 0; k < p.size(); ++k) delta += p[k] * dp[k];
    // dS and the saved out are rounded to bf16 (delta = dout . out: up to D such roundings).
    double delta_slack = 0;
    for (int64_t d = 0; d < kD; ++d) {
      const int64_t i = (b * kT + q) * kC + h * kD + d;
      delta_slack += RoundOff(Dtype::kBF16) * 2 * std::abs(out[i] * dout[i]);
    }
    for (int64_t d = 0; d < kD; ++d) {
      double want = 0, bound = 0;
      for (size_t k = 0; k < p.size(); ++k) {
        const double key = At(qkv, b, static_cast<int64_t>(k), 1, h, d) / std::sqrt(double{kD});
        want += p[k] * (dp[k] - delta) * key;
        bound += p[k] * (2 * RoundOff(Dtype::kBF16) * std::abs(dp[k] - delta) + delta_slack) *
                 std::abs(key);
      }
      const double got = dqkv[(b * kT + q) * 3 * kC + h * kD + d];
      const double allowed = bound + RoundOff(Dtype::kBF16) * std::abs(want) + 1e-5;
      if (std::abs(got - want) - allowed > dq_gap) {
        dq_gap = std::abs(got - want) - allowed;
        dq_bound = allowed;
      }
    }
    CHECK_MESSAGE(dq_gap <= 0, "dq is off by " << dq_gap << " more than the allowed " << dq_bound);
  }

  // dv of a key: the queries behind it, weighed by their probabilities.
  for (int sample = 0; sample < 6; ++sample) {
    const int64_t b = rng.Below(kB), h = rng.Below(kH), key = kT - 1 - rng.Below(60);
    CAPTURE(b);
    CAPTURE(h);
    CAPTURE(key);
    Doubles want(kD), bound(kD);
    for (int64_t q = key; q < kT; ++q) {
      double unused = 0;
      const double p = Probabilities(qkv, b, h, q, &unused)[static_cast<size_t>(key)];
      for (int64_t d = 0; d < kD; ++d) {
        const double term = p * dout[(b * kT + q) * kC + h * kD + d];
        want[static_cast<size_t>(d)] += term;
        bound[static_cast<size_t>(d)] += std::abs(term);
      }
    }
    double worst = 0;
    for (int64_t d = 0; d < kD; ++d) {
      const auto i = static_cast<size_t>(d);
      const double gap = std::abs(At(dqkv, b, key, 2, h, d) - want[i]) -
                         RoundOff(Dtype::kBF16) * (std::abs(want[i]) + bound[i]) - 1e-5;
      worst = std::max(worst, gap);
    }
    CHECK_MESSAGE(worst <= 0, "dv is off by " << worst << " more than rounding");
  }
}

// What cuDNN rounds to 16 bits on the way: probabilities and the gradients of scores before they
// multiply, the gradients of a head of keys before they add up over the heads that share it.
TEST_CASE("gpu attention: heads that share keys, every head size, any length, twice the same out") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (const AttentionShape& s :
         {AttentionShape{2, 128, 4, 2, 64}, AttentionShape{1, 256, 6, 2, 80},
          AttentionShape{2, 128, 4, 1, 96}, AttentionShape{1, 256, 8, 2, 128},
          AttentionShape{1, 128, 4, 2, 256}, AttentionShape{2, 200, 6, 3, 64},
          AttentionShape{1, 333, 4, 2, 128}, AttentionShape{2, 31, 4, 4, 64}}) {
      CAPTURE(DtypeName(dtype));
      CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
      Tensor qkv = Tensor::Random(rng, dtype, s.qkv_size()), out(dtype, s.out_size());
      Tensor lse(Dtype::kF32, s.B * s.H * s.T), dout = Tensor::Random(rng, dtype, out.size());
      Tensor dqkv(dtype, qkv.size());
      bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse});
      Tensor again(dtype, s.out_size());
      bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &again, &lse});
      CHECK(again == out);
      bench.Run(KernelId::kAttentionBackward, s.dims(), {&dout, &qkv, &out, &lse, &dqkv});
      const Doubles inputs = qkv.values();
      Doubles want_lse;
      CheckAllClose(out, Attention(s, inputs, &want_lse), 6 * RoundOff(dtype), "out");
      CheckAllClose(lse, want_lse, 1e-4, "lse");
      // Each gradient of a score is off by a rounding of itself and of the saved out, up to about
      // 30 in magnitude among so many; they add up with random signs.
      const double slack = 30 * static_cast<double>(s.Sharing()) * RoundOff(dtype);
      CheckAllClose(dqkv, AttentionGradient(s, inputs, AttentionProbs(s, inputs), dout.values()),
                    slack, "dqkv");
    }
  }
}

TEST_CASE("gpu attention: deterministic, twice the same gradients, as exact as otherwise") {
  ZEROPLAN_TEST_RNG(rng);
  AttentionPlans deterministic(0, true);
  CudaLaunch& launch = TestLaunch();
  AttentionPlans* const usual = std::exchange(launch.attention, &deterministic);
  Bench bench(1);
  for (const AttentionShape& s :
       {AttentionShape{4, 256, 4, 4, 64}, AttentionShape{4, 256, 8, 2, 128},
        AttentionShape{2, 333, 6, 3, 64}}) {
    CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
    Tensor qkv = Tensor::Random(rng, Dtype::kBF16, s.qkv_size()), out(Dtype::kBF16, s.out_size());
    Tensor lse(Dtype::kF32, s.B * s.H * s.T), dout = Tensor::Random(rng, Dtype::kBF16, out.size());
    Tensor dqkv(Dtype::kBF16, qkv.size()), again(Dtype::kBF16, qkv.size());
    bench.Run(KernelId::kAttentionForward, s.dims(), {&qkv, &out, &lse});
    bench.Run(KernelId::kAttentionBackward, s.dims(), {&dout, &qkv, &out, &lse, &dqkv});
    bench.Run(KernelId::kAttentionBackward, s.dims(), {&dout, &qkv, &out, &lse, &again});
    CHECK(dqkv == again);
    const Doubles inputs = qkv.values();
    const double slack = 30 * static_cast<double>(s.Sharing()) * RoundOff(Dtype::kBF16);
    CheckAllClose(dqkv, AttentionGradient(s, inputs, AttentionProbs(s, inputs), dout.values()),
                  slack, "dqkv");
  }
  launch.attention = usual;
}

TEST_CASE("gpu attention: which launches cuDNN takes") {
  AttentionPlans& plans = *TestLaunch().attention;
  CHECK(plans.Find({1, 128, 2, 2, 64}, Dtype::kF32, false, 0, false).plan == nullptr);
  std::string why;
  const bool has_library = SdpaLibrary::Open(&why) != nullptr;
  CAPTURE(why);
  WARN(has_library);
  if (!has_library) return;
  const auto workspace = [](const AttentionShape& s) {
    return KernelInfo(KernelId::kAttentionBackward).workspace_bytes(s.dims(), Backend::kCuda);
  };
  const AttentionShape shape{2, 256, 4, 4, 64};
  const uint64_t bytes = workspace(shape);
  const SdpaParts parts = plans.Find(shape, Dtype::kBF16, true, bytes, false);
  REQUIRE(parts.plan != nullptr);
  CHECK(parts.plan->workspace_bytes <= bytes);
  CHECK(parts.part == AttentionPart{2, 4});
  CHECK(plans.Find(shape, Dtype::kBF16, true, bytes, false).plan == parts.plan);
  if (parts.plan->workspace_bytes > 0) {
    CHECK_THROWS_AS(plans.Find(shape, Dtype::kBF16, true, 0, false), Error);
  }
  // What training asks for: shared keys and any length, in the workspace that a program sets aside.
  for (const AttentionShape& s :
       {AttentionShape{8, 2048, 32, 8, 64}, AttentionShape{8, 2048, 12, 2, 128},
        AttentionShape{2, 4096, 32, 8, 128}, AttentionShape{2, 1000, 32, 8, 128},
        AttentionShape{4, 1025, 12, 12, 64}, AttentionShape{2, 2048, 16, 8, 256}}) {
    CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
    CHECK(plans.Find(s, Dtype::kBF16, false, 256, false).plan != nullptr);
    const SdpaParts found = plans.Find(s, Dtype::kBF16, true, workspace(s), false);
    CHECK(found.plan != nullptr);
    CHECK(found.part == AttentionPart{s.B, s.G});
  }
}

// What plans count with: as many calls, in the workspace that a program sets aside.
TEST_CASE("gpu attention: deterministic launches go in the parts that were planned") {
  std::string why;
  const bool has_library = SdpaLibrary::Open(&why) != nullptr;
  WARN(has_library);
  if (!has_library) return;
  AttentionPlans plans(0, true);
  for (const AttentionShape& s :
       {AttentionShape{8, 2048, 32, 8, 64}, AttentionShape{1, 4096, 32, 8, 128},
        AttentionShape{4, 1024, 12, 12, 64}, AttentionShape{2, 1000, 32, 8, 128},
        AttentionShape{1, 2048, 16, 8, 256}}) {
    CAPTURE(FormatDims(KernelId::kAttentionBackward, s.dims(), {}));
    const AttentionLaunch launch{.dims = s.dims(),
                                 .backward = true,
                                 .compute_capability = 90,
                                 .deterministic = true,
                                 .workspace_bytes = AttentionWorkspaceBytes(s.dims(), true)};
    const SdpaParts found = plans.Find(s, Dtype::kBF16, true, launch.workspace_bytes, false);
    REQUIRE(found.plan != nullptr);
    const AttentionPath path = AttentionPathOf(launch);
    CHECK(found.part == path.part);
    CHECK(found.plan->workspace_bytes <=
          FusedAttentionBackwardBytes(PartDims(s.dims(), path.part), true));
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
