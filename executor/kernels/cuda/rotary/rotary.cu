// The table of cosines and sines, and the rotation in place.
#include "executor/kernels/cuda/device_util.cuh"
#include "executor/kernels/cuda/rotary/rotary.h"

namespace zeroplan::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTableThreads = 128;
constexpr int kTableRows = 16;  // positions of a block
constexpr int kHeads = 4;       // that a thread turns by the same angles

__global__ void __launch_bounds__(kTableThreads)
    TableKernel(RotaryShape shape, double attention_factor, float* table_TD, int64_t T) {
  const int64_t half = shape.D / 2, begin = static_cast<int64_t>(blockIdx.x) * kTableRows;
  const int64_t end = begin + kTableRows < T ? begin + kTableRows : T;
  for (int64_t i = threadIdx.x; i < half; i += kTableThreads) {
    const double frequency = RotaryFrequency(shape, i);
    for (int64_t t = begin; t < end; ++t) {
      double sine, cosine;
      sincos(static_cast<double>(t) * frequency, &sine, &cosine);
      table_TD[t * shape.D + i] = static_cast<float>(cosine * attention_factor);
      table_TD[t * shape.D + half + i] = static_cast<float>(sine * attention_factor);
    }
  }
}

// Threads y of a block take rows; threads x the parts of a row's query and key heads: W pairs of
// kHeads heads, which are `teams` apart, so that neighbouring threads read neighbouring memory.
template <typename T, int W>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 3 : 2)
    RotateKernel(T* qkv_MN, Typed<float> table_TD, QkvRows rows, float sign, int lanes, int teams) {
  using Vec = Pack<T, W>;
  const int64_t m = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (m >= rows.M) return;
  const int half = rows.D / 2;
  const int64_t table_at = rows.table_at(m);
  for (int part = threadIdx.x; part < lanes * teams; part += blockDim.x) {
    const int team = part / lanes, first = (part - team * lanes) * W;
    T* const pairs = qkv_MN + rows.at(m, team) + first;
    const int64_t step = static_cast<int64_t>(teams) * rows.D;
    Vec a[kHeads], b[kHeads];
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      if (team + k * teams >= rows.rotated()) continue;
      a[k] = LoadPack<T, W>(pairs + k * step);
      b[k] = LoadPack<T, W>(pairs + k * step + half);
    }
    float cosine[W], sine[W];
    table_TD.Load(table_at + first, cosine);
    table_TD.Load(table_at + half + first, sine);
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      if (team + k * teams >= rows.rotated()) continue;
      KeepPacked(a[k]);
      KeepPacked(b[k]);
#pragma unroll
      for (int e = 0; e < W; ++e) {
        const float x = ToFloat(a[k].v[e]), y = ToFloat(b[k].v[e]), s = sign * sine[e];
        a[k].v[e] = FromFloat<T>(x * cosine[e] - y * s);
        b[k].v[e] = FromFloat<T>(y * cosine[e] + x * s);
      }
      *reinterpret_cast<Vec*>(pairs + k * step) = a[k];
      *reinterpret_cast<Vec*>(pairs + k * step + half) = b[k];
    }
  }
}

template <typename T, int W>
void Rotate(const QkvRows& rows, const Typed<float>& table_TD, const FloatArray& qkv_MN, float sign,
            cudaStream_t stream) {
  const int lanes = rows.D / 2 / W, teams = (rows.rotated() + kHeads - 1) / kHeads;
  const int x = lanes * teams < kThreads ? lanes * teams : kThreads;
  const dim3 block(static_cast<unsigned>(x), static_cast<unsigned>(kThreads / x));
  RotateKernel<T, W><<<GridOf(rows.M, block.y), block, 0, stream>>>(
      static_cast<T*>(qkv_MN.data), table_TD, rows, sign, lanes, teams);
}

}  // namespace

void LaunchRotaryTable(const RotaryShape& shape, float attention_factor, float* table_TD, int64_t T,
                       cudaStream_t stream) {
  if (T == 0) return;
  TableKernel<<<GridOf(T, kTableRows), kTableThreads, 0, stream>>>(
      shape, static_cast<double>(attention_factor), table_TD, T);
}

void LaunchRotary(const QkvRows& rows, const FloatArray& table_TD, const FloatArray& qkv_MN,
                  float sign, cudaStream_t stream) {
  if (rows.M == 0) return;
  const Typed<float> table(table_TD);
  const bool vectors =
      rows.D % (2 * kVector) == 0 && Aligned(qkv_MN.data) && Aligned(table_TD.data);
  WithFloatType(qkv_MN.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (vectors) {
      Rotate<T, kVector>(rows, table, qkv_MN, sign, stream);
    } else {
      Rotate<T, 1>(rows, table, qkv_MN, sign, stream);
    }
  });
}

}  // namespace zeroplan::cuda
