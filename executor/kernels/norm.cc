// Sum of squares in double: scaled fp16 gradients may be so large that their squares leave fp32's
// range, and 10^9 of them need its precision.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {
namespace {

using simd::VecD;

double SumSquares(const float* x_n, int64_t n) {
  VecD sum{};
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    const VecD x = __builtin_convertvector(simd::Load(x_n + i, part), VecD);
    sum += x * x;
  });
  double total = 0;
  for (int i = 0; i < simd::kLanes; ++i) total += sum[i];
  return total;
}

}  // namespace

void NormSq(const KernelCall& call) {
  const KernelArg& g_n = Arg(call, 0);
  auto* state = Arg(call, 1).as<StepState>();
  ThreadPool& pool = *call.context.pool;
  const auto most = static_cast<int64_t>(pool.scratch_bytes() / sizeof(double));
  const FixedCut cut(call.dims[0], kElementGrain, most);
  auto* partials = static_cast<double*>(
      Scratch(pool, 0).Bytes(cut.chunks * static_cast<int64_t>(sizeof(double))));
  pool.ParallelFor(cut.chunks, 1, [&](int64_t begin, int64_t end, int) {
    alignas(64) float buffer[kBlock];
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      double sum = 0;
      ForEachBlock(cut.begin(chunk), cut.end(chunk), [&](int64_t first, int64_t count) {
        sum += SumSquares(ReadBlock(g_n, first, count, buffer), count);
      });
      partials[chunk] = sum;
    }
  });
  double sum = call.has(kAccumulate) ? state->grad_norm_sq : 0.0;
  for (int64_t chunk = 0; chunk < cut.chunks; ++chunk) sum += partials[chunk];
  state->grad_norm_sq = sum;
}

}  // namespace zeroplan::cpu
