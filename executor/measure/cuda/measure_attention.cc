#include <optional>
#include <vector>

#include "executor/measure/cuda/device_parts.h"

namespace zeroplan {
namespace {

struct AttentionShape {
  int64_t batch, heads, seq, head_dim;
};
// The cost model wants five rows or more. Building a plan takes cuDNN about a second.
// The small ones say what a call takes at least.
constexpr AttentionShape kQuickShapes[] = {{1, 8, 128, 64},    {1, 12, 1024, 64},
                                           {16, 12, 1024, 64}, {16, 25, 1024, 64},
                                           {8, 32, 1024, 128}, {4, 32, 2048, 128}};
constexpr AttentionShape kMoreShapes[] = {{8, 12, 128, 64},  {16, 4, 256, 64},   {4, 16, 2048, 64},
                                          {4, 25, 1024, 64}, {1, 32, 1024, 128}, {2, 16, 8192, 128},
                                          {4, 16, 4096, 64}, {16, 12, 512, 64}};

}  // namespace

void MeasureAttention(KernelBench& bench, const DeviceProperties& device, bool quick,
                      KernelRates& rates) {
  const Dtype dtype = HalfDtype(device);
  std::vector<AttentionShape> shapes(std::begin(kQuickShapes), std::end(kQuickShapes));
  if (!quick) shapes.insert(shapes.end(), std::begin(kMoreShapes), std::end(kMoreShapes));
  for (const AttentionShape& s : shapes) {
    const int64_t channels = s.heads * s.head_dim, rows = s.batch * s.seq;
    const KernelDims dims = {s.batch, s.seq, s.heads, s.heads, s.head_dim};
    const BenchArg qkv{ArgKind::kRandom, dtype, rows * 3 * channels};
    const BenchArg grad{ArgKind::kRandom, dtype, rows * channels};
    const BenchArg lse{ArgKind::kZero, Dtype::kF32, s.batch * s.heads * s.seq};
    const auto forward = bench.Seconds(KernelId::kAttentionForward, dims,
                                       {qkv,
                                        {ArgKind::kOutput, dtype, rows * channels},
                                        {ArgKind::kOutput, Dtype::kF32, lse.elements}});
    // With lse = 0 and values below 1/2 the probabilities are finite; they cost what others cost.
    const auto backward =
        bench.Seconds(KernelId::kAttentionBackward, dims,
                      {grad, qkv, grad, lse, {ArgKind::kOutput, dtype, rows * 3 * channels}});
    if (!forward || !backward) continue;
    rates.attention.push_back({s.batch, s.heads, s.seq, s.head_dim,
                               KernelInfo(KernelId::kAttentionForward).flops(dims) / *forward,
                               KernelInfo(KernelId::kAttentionBackward).flops(dims) / *backward});
  }
}

}  // namespace zeroplan
