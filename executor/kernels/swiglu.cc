// SwiGLU: y = silu(gate) * up, silu(x) = x / (1 + exp(-x)). Legend: M rows, F columns of y.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Store;
using simd::VecF;

ZEROPLAN_INLINE VecF Sigmoid(VecF x) { return 1.0f / (simd::Exp(-x) + 1.0f); }

// fn(row, first, count) for blocks of columns, on the pool's threads.
template <typename Fn>
void ForEachColumnBlock(const KernelCall& call, Fn&& fn) {
  const int64_t M = call.dims[0], F = call.dims[1];
  const int64_t grain = std::max<int64_t>(1, 4 * kBlock / std::max<int64_t>(F, 1));
  call.context.pool->ParallelFor(M, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t m = begin; m < end; ++m) {
      ForEachBlock(0, F, [&](int64_t first, int64_t count) { fn(m, first, count); });
    }
  });
}

}  // namespace

void SwiGluForward(const KernelCall& call) {
  const int64_t F = call.dims[1];
  const KernelArg &gu_M2F = Arg(call, 0), &y_MF = Arg(call, 1);
  ForEachColumnBlock(call, [&](int64_t m, int64_t first, int64_t count) {
    alignas(64) float gate_buffer[kBlock], up_buffer[kBlock], y_buffer[kBlock];
    const float* gate = ReadBlock(gu_M2F, 2 * m * F + first, count, gate_buffer);
    const float* up = ReadBlock(gu_M2F, (2 * m + 1) * F + first, count, up_buffer);
    float* y = WriteBlock(y_MF, m * F + first, y_buffer);
    simd::VectorLoop(count, [&](int64_t i, auto part) {
      const VecF g = Load(gate + i, part);
      Store(y + i, g * Sigmoid(g) * Load(up + i, part), part);
    });
    CommitBlock(y_MF, m * F + first, count, y_buffer);
  });
  RaiseMagnitude(*call.context.pool, y_MF, call.dims[0] * F, Arg(call, 2));
}

// With s = sigmoid(gate): dup = dy * gate * s, dgate = dy * up * s * (1 + gate * (1 - s)).
void SwiGluBackward(const KernelCall& call) {
  const int64_t F = call.dims[1];
  const KernelArg &dy_MF = Arg(call, 0), &gu_M2F = Arg(call, 1);
  ForEachColumnBlock(call, [&](int64_t m, int64_t first, int64_t count) {
    const int64_t gate_at = 2 * m * F + first, up_at = gate_at + F;
    alignas(64) float dy_buffer[kBlock], gate_buffer[kBlock], up_buffer[kBlock];
    const float* dy = ReadBlock(dy_MF, m * F + first, count, dy_buffer);
    const float* gate = ReadBlock(gu_M2F, gate_at, count, gate_buffer);
    const float* up = ReadBlock(gu_M2F, up_at, count, up_buffer);
    float* dgate = WriteBlock(gu_M2F, gate_at, gate_buffer);
    float* dup = WriteBlock(gu_M2F, up_at, up_buffer);
    simd::VectorLoop(count, [&](int64_t i, auto part) {
      const VecF d = Load(dy + i, part), g = Load(gate + i, part), u = Load(up + i, part);
      const VecF s = Sigmoid(g);
      Store(dup + i, d * g * s, part);
      Store(dgate + i, d * u * s * (1.0f + g * (1.0f - s)), part);
    });
    CommitBlock(gu_M2F, gate_at, count, gate_buffer);
    CommitBlock(gu_M2F, up_at, count, up_buffer);
  });
  RaiseMagnitude(*call.context.pool, gu_M2F, 2 * call.dims[0] * F, Arg(call, 2));
}

}  // namespace zeroplan::cpu
