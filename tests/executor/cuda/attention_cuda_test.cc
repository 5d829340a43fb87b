// Fused attention: small shapes as a whole, training sizes by samples. Legend: B micro-batch, T
// sequence, H heads of queries, G of keys and values, D head size.
#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "executor/kernels/cuda/attention/attention_plans.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "tests/executor/cuda/gpu_runner.h"
#include "tests/executor/kernels/attention_reference.h"
#include "tests/executor/kernels/sampled_attention.h"

namespace zeroplan::kernel_test {
namespace {

TEST_CASE("gpu attention: sizes that models train at, sampled queries and keys") {
  ZEROPLAN_TEST_RNG(rng);
  std::string why;
  const bool has_library = SdpaLibrary::Open(&why) != nullptr;
  WARN(has_library);
  // GPT-2 1.6B; Llama 3.1 8B with fewer heads; a length that is no multiple of a tile.
  for (const AttentionShape& s :
       {AttentionShape{16, 1024, 25, 25, 64}, AttentionShape{2, 4096, 8, 2, 128},
        AttentionShape{2, 2000, 8, 4, 128}}) {
    CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
    for (const bool backward : {false, true}) {
      const uint64_t bytes =
          backward
              ? KernelInfo(KernelId::kAttentionBackward).workspace_bytes(s.dims(), Backend::kCuda)
              : 0;
      const SdpaParts parts = TestLaunch().attention->Find(s, Dtype::kBF16, backward, bytes, false);
      CHECK((parts.plan != nullptr) == has_library);
    }
    SampledAttention(s, rng).CheckSamples(rng);
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
