// Sum of squares in double: scaled fp16 gradients may be so large that their squares leave fp32's
// range, and 10^9 of them need its precision.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {
namespace {

// Half a vector of floats becomes a whole one of doubles.
constexpr int kHalf = simd::kLanes / 2;
using HalfF = float __attribute__((vector_size(simd::kVectorBytes / 2)));
using VecD = double __attribute__((vector_size(simd::kVectorBytes)));

ZEROPLAN_INLINE VecD Square(const float* x) {
  HalfF narrow;
  std::memcpy(&narrow, x, sizeof(narrow));
  const VecD wide = __builtin_convertvector(narrow, VecD);
  return wide * wide;
}

double SumSquares(const float* x_n, int64_t n) {
  VecD sum[4] = {};  // four chains of additions in flight
  int64_t i = 0;
  for (; i + 4 * kHalf <= n; i += 4 * kHalf) {
    for (int part = 0; part < 4; ++part) sum[part] += Square(x_n + i + part * kHalf);
  }
  if (i < n) {
    alignas(64) float rest[4 * kHalf] = {};
    std::memcpy(rest, x_n + i, static_cast<size_t>(n - i) * sizeof(float));
    for (int part = 0; part < 4; ++part) sum[part] += Square(rest + part * kHalf);
  }
  const VecD all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  double total = 0;
  for (int lane = 0; lane < kHalf; ++lane) total += all[lane];
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
