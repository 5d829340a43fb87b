// Softmax cross-entropy of each row of logits, its gradient in place, and the mean of losses.
//
// Legend: R rows, V vocabulary, Vp padded vocabulary (columns from V on do not exist).
#include <cmath>

#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Splat;
using simd::Store;
using simd::VecF;

float RowMax(const float* x, int64_t n) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  VecF max = Splat(kLowest);
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    max = simd::Max(simd::Keep(Load(x + i, part), part, Splat(kLowest)), max);
  });
  return simd::Max(max);
}

// out = exp(x - max), and their sum: fp32 within a block of columns, double over blocks.
double ExpRow(const float* x, int64_t n, float max, float* out) {
  double total = 0;
  ForEachBlock(0, n, [&](int64_t first, int64_t count) {
    VecF sum{};
    simd::VectorLoop(count, [&](int64_t i, auto part) {
      const VecF e = simd::Keep(simd::Exp(Load(x + first + i, part) - max), part, VecF{});
      sum += e;
      Store(out + first + i, e, part);
    });
    total += static_cast<double>(simd::Sum(sum));
  });
  return total;
}

void ZeroElements(const KernelArg& arg, int64_t first, int64_t n) {
  std::memset(ElementAt(arg, first), 0, static_cast<size_t>(n) * DtypeBytes(arg.dtype));
}

}  // namespace

void CrossEntropy(const KernelCall& call) {
  const int64_t R = call.dims[0], V = call.dims[1], Vp = call.dims[2];
  const KernelArg& logits_RVp = Arg(call, 0);
  const auto* targets_R = Arg(call, 1).as<const int32_t>();
  const bool forward_only = call.has(kForwardOnly);
  const float grad_scale = forward_only ? 0.0f : Arg(call, 2).as<const StepState>()->grad_scale;
  auto* loss_R = Arg(call, 3).as<float>();
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(R, 1, [&](int64_t begin, int64_t end, int worker) {
    Scratch scratch(pool, worker);
    float *x_buffer = scratch.Floats(V), *e_V = scratch.Floats(V);
    for (int64_t r = begin; r < end; ++r) {
      const int32_t target = targets_R[r];
      if (target < 0) {
        loss_R[r] = 0;
        if (!forward_only) ZeroElements(logits_RVp, r * Vp, Vp);
        continue;
      }
      ZEROPLAN_CHECK(target < V, "target {} of row {}, vocabulary {}", target, r, V);
      const float* x_V = ReadBlock(logits_RVp, r * Vp, V, x_buffer);
      const float max = RowMax(x_V, V);
      const float target_logit = x_V[target];
      float* d_V = WriteBlock(logits_RVp, r * Vp, x_buffer);
      const double sum = ExpRow(x_V, V, max, forward_only ? e_V : d_V);
      loss_R[r] = static_cast<float>(std::log(sum) + static_cast<double>(max) -
                                     static_cast<double>(target_logit));
      if (forward_only) continue;
      const auto inverse = static_cast<float>(1.0 / sum);
      const float p_target = d_V[target] * inverse;
      simd::VectorLoop(V, [&](int64_t i, auto part) {
        Store(d_V + i, Load(d_V + i, part) * inverse * grad_scale, part);
      });
      d_V[target] = (p_target - 1.0f) * grad_scale;
      CommitBlock(logits_RVp, r * Vp, V, x_buffer);
      ZeroElements(logits_RVp, r * Vp + V, Vp - V);
    }
  });
}

void LossReduce(const KernelCall& call) {
  const int64_t n = call.dims[0];
  const auto* loss_n = Arg(call, 0).as<const float>();
  auto* state = Arg(call, 1).as<StepState>();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(loss_n[i]);
  const double mean = sum / static_cast<double>(n);
  state->loss_sum = call.has(kAccumulate) ? state->loss_sum + mean : mean;
}

}  // namespace zeroplan::cpu
