// RMS norm over all query heads together and over all key heads, then their rotation, and the
// gradient of both. Formulas as in qk_norm_rotary.cu, with the width of all heads for D.
//
// A block takes rows, a thread pairs of elements: W neighbours of a head's first half and the W
// that lie half a head later.
#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "executor/kernels/cuda/rotary/rotary.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Unit `unit` of a row's heads: its head, and its first element within the head.
struct Unit {
  int head, first;
};
template <int W>
__device__ inline Unit UnitOf(int unit, int half) {
  const int of_head = half / W;
  const int head = unit / of_head;
  return {head, (unit - head * of_head) * W};
}

template <int W, typename A>
__global__ void __launch_bounds__(kThreads)
    ForwardKernel(A qkv_MN, A w, const float* table_TD, A out_MN, float* rstd, QkvRows rows,
                  float eps) {
  __shared__ float shared[2][kWarps];
  const int64_t m = blockIdx.x;
  const int half = rows.D / 2, units = rows.heads() * (half / W);
  float squares[2] = {};
  for (int unit = threadIdx.x; unit < units; unit += kThreads) {
    const Unit at = UnitOf<W>(unit, half);
    if (at.head >= rows.rotated()) break;
    float a[W], b[W], sum = 0;
    qkv_MN.Load(rows.at(m, at.head) + at.first, a);
    qkv_MN.Load(rows.at(m, at.head) + half + at.first, b);
#pragma unroll
    for (int e = 0; e < W; ++e) sum = fmaf(a[e], a[e], fmaf(b[e], b[e], sum));
    (at.head < rows.H ? squares[0] : squares[1]) += sum;
  }
  float inverse[2];
#pragma unroll
  for (int kind = 0; kind < 2; ++kind) {
    const float columns = static_cast<float>((kind == 0 ? rows.H : rows.G) * rows.D);
    inverse[kind] = 1.0f / sqrtf(BlockSum<kThreads>(squares[kind], shared[kind]) / columns + eps);
    if (threadIdx.x == 0) rstd[2 * m + kind] = inverse[kind];
  }
  const float* table_D = table_TD + rows.table_at(m);
  for (int unit = threadIdx.x; unit < units; unit += kThreads) {
    const Unit at = UnitOf<W>(unit, half);
    const int64_t first = rows.at(m, at.head) + at.first;
    float a[W], b[W];
    qkv_MN.Load(first, a);
    qkv_MN.Load(first + half, b);
    if (at.head < rows.rotated()) {
      const float scale = at.head < rows.H ? inverse[0] : inverse[1];
      const int64_t w_at = static_cast<int64_t>(at.head) * rows.D + at.first;
      float wa[W], wb[W];
      w.Load(w_at, wa);
      w.Load(w_at + half, wb);
#pragma unroll
      for (int e = 0; e < W; ++e) {
        const float cosine = table_D[at.first + e], sine = table_D[half + at.first + e];
        const float x = a[e] * scale * wa[e], y = b[e] * scale * wb[e];
        a[e] = x * cosine - y * sine;
        b[e] = y * cosine + x * sine;
      }
    }
    out_MN.Store(first, a);
    out_MN.Store(first + half, b);
  }
}

// values[kind], from registers.
__device__ inline float Of(const float (&values)[2], bool keys) {
  return keys ? values[1] : values[0];
}

// A row's units: n = x * rstd and the output's gradient turned back, and the sums over heads.
template <int W, typename A>
struct BackwardRow {
  const A &dqkv_MN, &qkv_MN;
  const QkvRows& rows;
  const float* table_D;
  int64_t m;
  float inverse[2];  // query heads first, then key heads

  __device__ bool Keys(const Unit& at) const { return at.head >= rows.H; }
  __device__ void Read(const Unit& at, float (&n)[2][W], float (&dy)[2][W]) const {
    const int half = rows.D / 2;
    const int64_t first = rows.at(m, at.head) + at.first;
    const float scale = Of(inverse, Keys(at));
    dqkv_MN.Load(first, dy[0]);
    dqkv_MN.Load(first + half, dy[1]);
    qkv_MN.Load(first, n[0]);
    qkv_MN.Load(first + half, n[1]);
#pragma unroll
    for (int e = 0; e < W; ++e) {
      const float cosine = table_D[at.first + e], sine = table_D[half + at.first + e];
      const float a = dy[0][e], b = dy[1][e];
      dy[0][e] = a * cosine + b * sine;
      dy[1][e] = b * cosine - a * sine;
      n[0][e] *= scale;
      n[1][e] *= scale;
    }
  }
  // Stores dx of a unit's part. dy: times the weight already.
  __device__ void Store(const Unit& at, int part, const float (&n)[W], float (&dy)[W],
                        const float (&mean)[2]) const {
    const float of_mean = Of(mean, Keys(at)), scale = Of(inverse, Keys(at));
#pragma unroll
    for (int e = 0; e < W; ++e) dy[e] = (dy[e] - n[e] * of_mean) * scale;
    dqkv_MN.Store(rows.at(m, at.head) + part * (rows.D / 2) + at.first, dy);
  }
};

// Means over the query heads and over the key heads. Every thread gets them; all take part.
__device__ inline void MeansOf(const QkvRows& rows, const float (&sums)[2],
                               float (&shared)[2][kWarps], float (&mean)[2]) {
  __syncthreads();  // the last row's sums have been read
#pragma unroll
  for (int kind = 0; kind < 2; ++kind) {
    const float columns = static_cast<float>((kind == 0 ? rows.H : rows.G) * rows.D);
    mean[kind] = BlockSum<kThreads>(sums[kind], shared[kind]) / columns;
  }
}

// partials[block][(H+G)*D]: each thread adds to elements of its own. With kOneUnit a thread has one
// unit at most, and keeps it and its sums in registers.
template <int W, bool kOneUnit, typename A>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(A dqkv_MN, A qkv_MN, A w, const float* rstd, const float* table_TD,
                   float* partials, QkvRows rows, int64_t block_rows) {
  __shared__ float shared[2][kWarps];
  const int half = rows.D / 2, units = rows.rotated() * (half / W);
  float* const dw = partials + static_cast<int64_t>(blockIdx.x) * rows.rotated() * rows.D;
  const int64_t begin = blockIdx.x * block_rows;
  const int64_t end = begin + block_rows < rows.M ? begin + block_rows : rows.M;
  const auto row_of = [&](int64_t m) {
    return BackwardRow<W, A>{
        dqkv_MN, qkv_MN, rows, table_TD + rows.table_at(m), m, {rstd[2 * m], rstd[2 * m + 1]}};
  };
  const auto weight_at = [&](const Unit& at, int part) {
    return static_cast<int64_t>(at.head) * rows.D + part * half + at.first;
  };
  if constexpr (kOneUnit) {
    const bool has = static_cast<int>(threadIdx.x) < units;
    const Unit at = UnitOf<W>(has ? static_cast<int>(threadIdx.x) : 0, half);
    float of_w[2][W] = {}, sum_w[2][W] = {}, n[2][W] = {}, dy[2][W] = {};
    for (int part = 0; part < 2; ++part) w.Load(weight_at(at, part), of_w[part]);
    for (int64_t m = begin; m < end; ++m) {
      const BackwardRow<W, A> row = row_of(m);
      float sum = 0, mean[2];
      if (has) {
        row.Read(at, n, dy);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
#pragma unroll
          for (int e = 0; e < W; ++e) {
            sum_w[part][e] = fmaf(dy[part][e], n[part][e], sum_w[part][e]);
            dy[part][e] *= of_w[part][e];
            sum = fmaf(dy[part][e], n[part][e], sum);
          }
        }
      }
      const bool keys = at.head >= rows.H;
      MeansOf(rows, {keys ? 0.0f : sum, keys ? sum : 0.0f}, shared, mean);
      for (int part = 0; has && part < 2; ++part) row.Store(at, part, n[part], dy[part], mean);
    }
    for (int part = 0; has && part < 2; ++part) {
      for (int e = 0; e < W; ++e) dw[weight_at(at, part) + e] = sum_w[part][e];
    }
  } else {
    for (int64_t m = begin; m < end; ++m) {
      const BackwardRow<W, A> row = row_of(m);
      float sums[2] = {}, mean[2];
      for (int unit = threadIdx.x; unit < units; unit += kThreads) {
        const Unit at = UnitOf<W>(unit, half);
        float n[2][W], dy[2][W], of_w[W], sum = 0;
        row.Read(at, n, dy);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          w.Load(weight_at(at, part), of_w);
#pragma unroll
          for (int e = 0; e < W; ++e) {
            float& to = dw[weight_at(at, part) + e];
            const float add = dy[part][e] * n[part][e];
            to = m == begin ? add : to + add;
            sum = fmaf(dy[part][e] * of_w[e], n[part][e], sum);
          }
        }
        (row.Keys(at) ? sums[1] : sums[0]) += sum;
      }
      MeansOf(rows, sums, shared, mean);
      for (int unit = threadIdx.x; unit < units; unit += kThreads) {
        const Unit at = UnitOf<W>(unit, half);
        float n[2][W], dy[2][W], of_w[W];
        row.Read(at, n, dy);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          w.Load(weight_at(at, part), of_w);
#pragma unroll
          for (int e = 0; e < W; ++e) dy[part][e] *= of_w[e];
          row.Store(at, part, n[part], dy[part], mean);
        }
      }
    }
  }
}

// fn(W as a type with a `value`, TypeTag of the accessors).
template <typename Fn>
void Dispatch(const QkvRows& rows, std::initializer_list<FloatArray> arrays, Fn&& fn) {
  bool fast = rows.D % (2 * kVector) == 0;
  for (const FloatArray& array : arrays) {
    fast = fast && array.dtype == arrays.begin()->dtype && Aligned(array.data);
  }
  if (!fast) {
    fn(Int<1>{}, TypeTag<Runtime>{});
    return;
  }
  WithFloatType(arrays.begin()->dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fn(Int<kVector>{}, TypeTag<Typed<T>>{});
  });
}

}  // namespace

void LaunchWholeNormRotaryForward(const QkvRows& rows, const QkNormForwardArrays& arrays,
                                  cudaStream_t stream) {
  if (rows.M == 0) return;
  Dispatch(rows, {arrays.qkv_MN, arrays.w_2D, arrays.out_MN}, [&](auto width, auto array) {
    using A = typename decltype(array)::type;
    ForwardKernel<decltype(width)::value><<<GridOf(rows.M, 1), kThreads, 0, stream>>>(
        A(arrays.qkv_MN), A(arrays.w_2D), static_cast<const float*>(arrays.table_TD.data),
        A(arrays.out_MN), arrays.rstd, rows, arrays.eps);
  });
}

void LaunchWholeNormRotaryBackward(const QkvRows& rows, const QkNormBackwardArrays& arrays,
                                   cudaStream_t stream) {
  const int64_t block_rows = CeilDiv64(rows.M, NormBackwardBlocks(rows.M));
  const int64_t blocks = CeilDiv64(rows.M, block_rows);
  Dispatch(rows, {arrays.dqkv_MN, arrays.qkv_MN, arrays.w_2D}, [&](auto width, auto array) {
    using A = typename decltype(array)::type;
    constexpr int kWidth = decltype(width)::value;
    const bool one_unit = rows.rotated() * (rows.D / 2 / kWidth) <= kThreads;
    const auto kernel =
        one_unit ? BackwardKernel<kWidth, true, A> : BackwardKernel<kWidth, false, A>;
    kernel<<<GridOf(blocks, 1), kThreads, 0, stream>>>(
        A(arrays.dqkv_MN), A(arrays.qkv_MN), A(arrays.w_2D), arrays.rstd,
        static_cast<const float*>(arrays.table_TD.data), arrays.partials, rows, block_rows);
  });
  AddPartials(arrays.partials, blocks, static_cast<int64_t>(rows.rotated()) * rows.D, arrays.dw_2D,
              {}, arrays.add_to_weights, stream);
}

}  // namespace zeroplan::cuda
