// Heads of a rank's rows into the parts that ranks exchange, and back
// (core/program/kernel_rows.inc).
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/elementwise/elementwise.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;

// A block takes W columns a thread of row blockIdx.x of the parts.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    PackKernel(HeadExchange s, Typed<T> x_BTN, Typed<T> parts_BSTn) {
  const int64_t row = blockIdx.x;
  const int columns = s.part_columns();
  const int64_t b = row / (s.S * s.T), t = row % s.T;
  const auto r = static_cast<int>(row / s.T % s.S);
  const int64_t x = (b * s.T + t) * s.row_columns();
  for (int c = static_cast<int>(threadIdx.x) * W; c < columns; c += kThreads * W) {
    float v[W];
    x_BTN.Load(x + s.RowColumn(r, c), v);
    parts_BSTn.Store(row * columns + c, v);
  }
}

// A block takes W columns a thread of row blockIdx.x of x.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    UnpackKernel(HeadExchange s, Typed<T> parts_BSTn, Typed<T> x_BTN) {
  const int64_t row = blockIdx.x;
  const int columns = s.row_columns();
  const int64_t b = row / s.T, t = row % s.T;
  for (int c = static_cast<int>(threadIdx.x) * W; c < columns; c += kThreads * W) {
    const HeadExchange::Parts parts = s.PartsOf(c);
    float sum[W];
    parts_BSTn.Load(s.part_row(b, parts.first, t) + parts.column, sum);
    for (int p = 1; p < parts.count; ++p) {
      float v[W];
      parts_BSTn.Load(s.part_row(b, parts.first + p, t) + parts.column, v);
#pragma unroll
      for (int e = 0; e < W; ++e) sum[e] += v[e];
    }
    x_BTN.Store(row * columns + c, sum);
  }
}

// fn(W, TypeTag of the elements), both as types.
template <typename Fn>
void Dispatch(const HeadExchange& s, const FloatArray& from, const FloatArray& to, Fn&& fn) {
  const bool vectors = s.D % kVector == 0 && Aligned(from.data) && Aligned(to.data);
  WithFloatType(from.dtype, [&](auto tag) {
    if (vectors) {
      fn(Int<kVector>{}, tag);
    } else {
      fn(Int<1>{}, tag);
    }
  });
}

}  // namespace

void LaunchPackHeads(const HeadExchange& s, const FloatArray& x_BTN, const FloatArray& parts_BSTn,
                     cudaStream_t stream) {
  if (s.B * s.T == 0) return;
  Dispatch(s, x_BTN, parts_BSTn, [&](auto width, auto tag) {
    using T = typename decltype(tag)::type;
    PackKernel<decltype(width)::value, T><<<GridOf(s.B * s.S * s.T, 1), kThreads, 0, stream>>>(
        s, Typed<T>(x_BTN), Typed<T>(parts_BSTn));
  });
}

void LaunchUnpackHeads(const HeadExchange& s, const FloatArray& parts_BSTn, const FloatArray& x_BTN,
                       cudaStream_t stream) {
  if (s.B * s.T == 0) return;
  Dispatch(s, parts_BSTn, x_BTN, [&](auto width, auto tag) {
    using T = typename decltype(tag)::type;
    UnpackKernel<decltype(width)::value, T>
        <<<GridOf(s.B * s.T, 1), kThreads, 0, stream>>>(s, Typed<T>(parts_BSTn), Typed<T>(x_BTN));
  });
}

}  // namespace zeroplan::cuda
