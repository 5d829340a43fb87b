// RMS norm of query and key heads, then their rotation, and the gradient of both.
//
// The kernels for D in multiples of 16 give a head to a team of threads, a power of two, each with
// 8 pairs of elements in registers. With n = x * rstd and d = dy * w, dy the output's gradient
// turned back: dx = (d - n * mean(d * n)) * rstd, dw = sum over rows and heads of dy * n.
#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/gemm/gemm_kernels.h"
#include "executor/kernels/cuda/rotary/rotary.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeads = 4;  // forward: that a team norms, turned by the same angles
constexpr int kMostTeam = 32;

// The pairs that a thread holds: elements [first, first + 8) and as many half a head later, as they
// are in memory.
template <typename T>
struct Pairs {
  Pack<T, kVector> a, b;

  __device__ void Load(const T* head, int first, int half) {
    a = LoadPack<T, kVector>(head + first);
    b = LoadPack<T, kVector>(head + half + first);
  }
  __device__ void Store(T* head, int first, int half) const {
    *reinterpret_cast<Pack<T, kVector>*>(head + first) = a;
    *reinterpret_cast<Pack<T, kVector>*>(head + half + first) = b;
  }
  __device__ void Keep() {
    KeepPacked(a);
    KeepPacked(b);
  }
};

// Over `team` neighbours, a power of two; every lane of the warp takes part.
__device__ inline float TeamSum(float v, int team) {
  for (int offset = team / 2; offset > 0; offset >>= 1) {
    v += __shfl_xor_sync(0xffffffffu, v, offset);
  }
  return v;
}

// blockDim.x threads are a team, which takes kHeads heads of a row; `teams` of them a row.
template <typename T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 3 : 2)
    ForwardKernel(const T* qkv_MN, const T* w_2D, const float* table_TD, T* out_MN, float* rstd,
                  QkvRows rows, int teams, float eps) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64_t m = unit <= UINT32_MAX ? static_cast<uint32_t>(unit) / static_cast<uint32_t>(teams)
                                       : unit / teams;
  const int team = static_cast<int>(unit - m * teams), half = rows.D / 2;
  const int first = static_cast<int>(threadIdx.x) * kVector;
  const bool has = m < rows.M && first < half;  // the others only sum zeros
  Pairs<T> x[kHeads];
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    const int head = team + k * teams;
    if (has && head < rows.heads()) x[k].Load(qkv_MN + rows.at(m, head), first, half);
  }
  Pairs<float> angles;
  if (has) angles.Load(table_TD + rows.table_at(m), first, half);
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
    const int head = team + k * teams;
    const bool mine = has && head < rows.heads();
    float squares = 0;
    if (mine) {
      x[k].Keep();
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const float a = ToFloat(x[k].a.v[e]), b = ToFloat(x[k].b.v[e]);
        squares = fmaf(a, a, fmaf(b, b, squares));
      }
    }
    squares = TeamSum(squares, static_cast<int>(blockDim.x));
    if (!mine) continue;
    if (head < rows.rotated()) {
      const float inverse = 1.0f / sqrtf(squares / static_cast<float>(rows.D) + eps);
      Pairs<T> w;
      w.Load(w_2D + (head < rows.H ? 0 : rows.D), first, half);
      x[k].Keep();
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const float a = ToFloat(x[k].a.v[e]) * inverse * ToFloat(w.a.v[e]);
        const float b = ToFloat(x[k].b.v[e]) * inverse * ToFloat(w.b.v[e]);
        const float cosine = angles.a.v[e], sine = angles.b.v[e];
        x[k].a.v[e] = FromFloat<T>(a * cosine - b * sine);
        x[k].b.v[e] = FromFloat<T>(b * cosine + a * sine);
      }
      if (threadIdx.x == 0) rstd[m * rows.rotated() + head] = inverse;
    }
    x[k].Store(out_MN + rows.at(m, head), first, half);
  }
}

// Any D and dtypes: a block a row, a warp a head.
__global__ void __launch_bounds__(kThreads)
    AnyForwardKernel(Runtime qkv_MN, Runtime w_2D, const float* table_TD, Runtime out_MN,
                     float* rstd, QkvRows rows, float eps) {
  const int64_t m = blockIdx.x;
  const int half = rows.D / 2, lane = threadIdx.x % 32;
  const float* table_D = table_TD + rows.table_at(m);
  for (int head = threadIdx.x / 32; head < rows.heads(); head += kThreads / 32) {
    const int64_t at = rows.at(m, head);
    if (head >= rows.rotated()) {
      for (int i = lane; i < rows.D; i += 32) out_MN.Set(at + i, qkv_MN.Get(at + i));
      continue;
    }
    float squares = 0;
    for (int i = lane; i < rows.D; i += 32) {
      const float x = qkv_MN.Get(at + i);
      squares += x * x;
    }
    const float inverse = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(rows.D) + eps);
    const int w_at = head < rows.H ? 0 : rows.D;
    for (int i = lane; i < half; i += 32) {
      const float a = qkv_MN.Get(at + i) * inverse * w_2D.Get(w_at + i);
      const float b = qkv_MN.Get(at + half + i) * inverse * w_2D.Get(w_at + half + i);
      out_MN.Set(at + i, a * table_D[i] - b * table_D[half + i]);
      out_MN.Set(at + half + i, b * table_D[i] + a * table_D[half + i]);
    }
    if (lane == 0) rstd[m * rows.rotated() + head] = inverse;
  }
}

// A block takes `block_rows` rows: their query heads first, then their key heads, so that a thread
// sums dw of one kind at a time. Sums of its teams come together in shared memory, in their order:
// partials[block][2][D].
template <typename T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 3 : 2)
    BackwardKernel(T* dqkv_MN, const T* qkv_MN, const T* w_2D, const float* rstd,
                   const float* table_TD, float* partials, QkvRows rows, int block_rows) {
  __shared__ float sums[kThreads * 2 * kVector];  // [teams][D]: D is at most 16 a thread of a team
  const int half = rows.D / 2, first = static_cast<int>(threadIdx.x) * kVector;
  const int teams = static_cast<int>(blockDim.y), team = static_cast<int>(threadIdx.y);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * block_rows;
  const auto here = static_cast<int>(rows.M - begin < block_rows ? rows.M - begin : block_rows);
  const bool has = first < half;
  for (int kind = 0; kind < 2; ++kind) {
    const int heads = kind == 0 ? rows.H : rows.G, first_head = kind == 0 ? 0 : rows.H;
    const int units = here * heads;
    Pairs<T> w;
    if (has) w.Load(w_2D + kind * rows.D, first, half);
    float dw[2][kVector] = {};
    // Every team makes the same number of rounds: all lanes of a warp sum together.
    for (int base = 0; base < units; base += teams) {
      const int unit = base + team;
      const bool works = has && unit < units;
      const int row = unit / heads, head = first_head + unit - row * heads;
      const int64_t m = begin + row, at = rows.at(m, head);
      float n[2][kVector], d[2][kVector], inverse = 0, sum = 0;
      if (works) {
        Pairs<T> dy, x;
        Pairs<float> angles;
        dy.Load(dqkv_MN + at, first, half);
        x.Load(qkv_MN + at, first, half);
        angles.Load(table_TD + rows.table_at(m), first, half);
        inverse = rstd[m * rows.rotated() + head];
        w.Keep();
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
          const float a = ToFloat(dy.a.v[e]), b = ToFloat(dy.b.v[e]);
          const float cosine = angles.a.v[e], sine = angles.b.v[e];
          const float back_a = a * cosine + b * sine, back_b = b * cosine - a * sine;
          n[0][e] = ToFloat(x.a.v[e]) * inverse;
          n[1][e] = ToFloat(x.b.v[e]) * inverse;
          dw[0][e] = fmaf(back_a, n[0][e], dw[0][e]);
          dw[1][e] = fmaf(back_b, n[1][e], dw[1][e]);
          d[0][e] = back_a * ToFloat(w.a.v[e]);
          d[1][e] = back_b * ToFloat(w.b.v[e]);
          sum = fmaf(d[0][e], n[0][e], fmaf(d[1][e], n[1][e], sum));
        }
      }
      const float mean = TeamSum(sum, static_cast<int>(blockDim.x)) / static_cast<float>(rows.D);
      if (!works) continue;
      Pairs<T> dx;
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        dx.a.v[e] = FromFloat<T>((d[0][e] - n[0][e] * mean) * inverse);
        dx.b.v[e] = FromFloat<T>((d[1][e] - n[1][e] * mean) * inverse);
      }
      dx.Store(dqkv_MN + at, first, half);
    }
    __syncthreads();  // the first kind's sums have been read
    if (has) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        sums[team * rows.D + first + e] = dw[0][e];
        sums[team * rows.D + half + first + e] = dw[1][e];
      }
    }
    __syncthreads();
    float* const to = partials + (static_cast<int64_t>(blockIdx.x) * 2 + kind) * rows.D;
    for (int c = team * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); c < rows.D;
         c += kThreads) {
      float total = 0;
      for (int from = 0; from < teams; ++from) total += sums[from * rows.D + c];
      to[c] = total;
    }
  }
}

// Any D and dtypes: a block a head at a time, sums of dw in its partials in memory, where each
// thread has pairs of its own.
__global__ void __launch_bounds__(kThreads)
    AnyBackwardKernel(Runtime dqkv_MN, Runtime qkv_MN, Runtime w_2D, const float* rstd,
                      const float* table_TD, float* partials, QkvRows rows, int block_rows) {
  __shared__ float shared[kThreads / 32];
  const int half = rows.D / 2;
  float* const dw_2D = partials + static_cast<int64_t>(blockIdx.x) * 2 * rows.D;
  for (int kind = 0; kind < 2; ++kind) {
    for (int i = threadIdx.x; i < half; i += kThreads) {
      dw_2D[kind * rows.D + i] = dw_2D[kind * rows.D + half + i] = 0;
    }
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * block_rows;
  const int64_t end = begin + block_rows < rows.M ? begin + block_rows : rows.M;
  for (int64_t m = begin; m < end; ++m) {
    const float* table_D = table_TD + rows.table_at(m);
    for (int head = 0; head < rows.rotated(); ++head) {
      const int64_t at = rows.at(m, head);
      const int w_at = head < rows.H ? 0 : rows.D;
      const float inverse = rstd[m * rows.rotated() + head];
      // Pair i of the head: n and dy.
      const auto read = [&](int i, float(&n)[2], float(&dy)[2]) {
        const float cosine = table_D[i], sine = table_D[half + i];
        const float a = dqkv_MN.Get(at + i), b = dqkv_MN.Get(at + half + i);
        dy[0] = a * cosine + b * sine;
        dy[1] = b * cosine - a * sine;
        n[0] = qkv_MN.Get(at + i) * inverse;
        n[1] = qkv_MN.Get(at + half + i) * inverse;
      };
      float sum = 0;
      for (int i = threadIdx.x; i < half; i += kThreads) {
        float n[2], dy[2];
        read(i, n, dy);
        for (int part = 0; part < 2; ++part) {
          const int c = w_at + part * half + i;
          dw_2D[c] += dy[part] * n[part];
          sum += dy[part] * w_2D.Get(c) * n[part];
        }
      }
      __syncthreads();  // the last head's sums have been read
      const float mean = BlockSum<kThreads>(sum, shared) / static_cast<float>(rows.D);
      for (int i = threadIdx.x; i < half; i += kThreads) {
        float n[2], dy[2];
        read(i, n, dy);
        for (int part = 0; part < 2; ++part) {
          const float d = dy[part] * w_2D.Get(w_at + part * half + i);
          dqkv_MN.Set(at + part * half + i, (d - n[part] * mean) * inverse);
        }
      }
    }
  }
}

// Threads of a head's team, or 0 where the head is for the kernels that take any.
int TeamOf(const QkvRows& rows) {
  if (rows.D % (2 * kVector) != 0) return 0;
  int team = 1;
  while (team * 2 * kVector < rows.D) team *= 2;
  return team <= kMostTeam ? team : 0;
}

bool Alike(const FloatArray& a, const FloatArray& b) {
  return a.dtype == b.dtype && Aligned(a.data) && Aligned(b.data);
}

}  // namespace

void LaunchQkNormRotaryForward(const QkvRows& rows, const QkNormForwardArrays& arrays,
                               cudaStream_t stream) {
  if (rows.M == 0) return;
  const auto* table_TD = static_cast<const float*>(arrays.table_TD.data);
  const int team = TeamOf(rows);
  if (team == 0 || !Alike(arrays.qkv_MN, arrays.w_2D) || !Alike(arrays.qkv_MN, arrays.out_MN) ||
      !Aligned(table_TD)) {
    AnyForwardKernel<<<GridOf(rows.M, 1), kThreads, 0, stream>>>(
        Runtime(arrays.qkv_MN), Runtime(arrays.w_2D), table_TD, Runtime(arrays.out_MN), arrays.rstd,
        rows, arrays.eps);
    return;
  }
  const int teams = (rows.heads() + kHeads - 1) / kHeads;
  const dim3 block(static_cast<unsigned>(team), static_cast<unsigned>(kThreads / team));
  WithFloatType(arrays.qkv_MN.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ForwardKernel<T><<<GridOf(rows.M * teams, block.y), block, 0, stream>>>(
        static_cast<const T*>(arrays.qkv_MN.data), static_cast<const T*>(arrays.w_2D.data),
        table_TD, static_cast<T*>(arrays.out_MN.data), arrays.rstd, rows, teams, arrays.eps);
  });
}

void LaunchQkNormRotaryBackward(const QkvRows& rows, const QkNormBackwardArrays& arrays,
                                cudaStream_t stream) {
  const int64_t block_rows = CeilDiv64(rows.M, QkNormBackwardBlocks(rows.M));
  const int64_t blocks = CeilDiv64(rows.M, block_rows);
  const auto* table_TD = static_cast<const float*>(arrays.table_TD.data);
  const int team = TeamOf(rows);
  if (team == 0 || block_rows * rows.H > INT32_MAX - kThreads ||
      !Alike(arrays.dqkv_MN, arrays.qkv_MN) || !Alike(arrays.dqkv_MN, arrays.w_2D) ||
      !Aligned(table_TD)) {
    AnyBackwardKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        Runtime(arrays.dqkv_MN), Runtime(arrays.qkv_MN), Runtime(arrays.w_2D), arrays.rstd,
        table_TD, arrays.partials, rows, static_cast<int>(block_rows));
  } else {
    const dim3 block(static_cast<unsigned>(team), static_cast<unsigned>(kThreads / team));
    WithFloatType(arrays.qkv_MN.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      BackwardKernel<T><<<static_cast<unsigned>(blocks), block, 0, stream>>>(
          static_cast<T*>(arrays.dqkv_MN.data), static_cast<const T*>(arrays.qkv_MN.data),
          static_cast<const T*>(arrays.w_2D.data), arrays.rstd, table_TD, arrays.partials, rows,
          static_cast<int>(block_rows));
    });
  }
  AddPartials(arrays.partials, blocks, 2 * rows.D, arrays.dw_2D, {}, arrays.add_to_weights, stream);
}

}  // namespace zeroplan::cuda
