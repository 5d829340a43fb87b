// GELU, tanh form: x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3). Computed as
// x / (1 + exp(-2u)), the same function, which keeps its relative accuracy for large negative x
// where 1 + tanh(u) would cancel.
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/gemm.h"
#include "executor/kernels/kernel_util.h"

namespace zeroplan {
namespace {

using simd::Load;
using simd::Store;
using simd::VecF;

constexpr float kTwoScale = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kCubic = 0.044715f;
constexpr int64_t kGrain = 4 * kBlock;

ZEROPLAN_INLINE VecF Gate(VecF x) {  // (1 + tanh(u)) / 2
  const VecF two_u = x * kTwoScale * (kCubic * x * x + 1.0f);
  return 1.0f / (simd::Exp(-two_u) + 1.0f);
}

}  // namespace

void Gelu(const float* x, int64_t n, float* y) {
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    const VecF v = Load(x + i, part);
    Store(y + i, v * Gate(v), part);
  });
}

// With s = Gate(x): gelu' = s + x s (1 - s) 2u'.
void GeluGradient(const float* x, const float* d_in, int64_t n, float* d) {
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    const VecF v = Load(x + i, part), s = Gate(v);
    const VecF two_du = kTwoScale * (3.0f * kCubic * v * v + 1.0f);
    // Far out s (1 - s) is 0 while u' may be infinite.
    const VecF slope = s * (1.0f - s);
    const VecF bend = slope == 0.0f ? VecF{} : v * slope * two_du;
    Store(d + i, Load(d_in + i, part) * (s + bend), part);
  });
}

namespace cpu {

void GeluForward(const KernelCall& call) {
  const KernelArg &x_n = Arg(call, 0), &y_n = Arg(call, 1);
  call.context.pool->ParallelFor(call.dims[0], kGrain, [&](int64_t begin, int64_t end, int) {
    alignas(64) float x_buffer[kBlock], y_buffer[kBlock];
    ForEachBlock(begin, end, [&](int64_t first, int64_t count) {
      const float* x = ReadBlock(x_n, first, count, x_buffer);
      float* y = WriteBlock(y_n, first, y_buffer);
      Gelu(x, count, y);
      CommitBlock(y_n, first, count, y_buffer);
    });
  });
  RaiseMagnitude(*call.context.pool, y_n, call.dims[0], Arg(call, 2));
}

void GeluBackward(const KernelCall& call) {
  const KernelArg &x_n = Arg(call, 0), &d_n = Arg(call, 1);
  call.context.pool->ParallelFor(call.dims[0], kGrain, [&](int64_t begin, int64_t end, int) {
    alignas(64) float x_buffer[kBlock], d_buffer[kBlock];
    ForEachBlock(begin, end, [&](int64_t first, int64_t count) {
      const float* x = ReadBlock(x_n, first, count, x_buffer);
      const float* d_in = ReadBlock(d_n, first, count, d_buffer);
      float* d = WriteBlock(d_n, first, d_buffer);
      GeluGradient(x, d_in, count, d);
      CommitBlock(d_n, first, count, d_buffer);
    });
  });
  RaiseMagnitude(*call.context.pool, d_n, call.dims[0], Arg(call, 2));
}

}  // namespace cpu
}  // namespace zeroplan
