// Causal attention, forward. A tile of queries meets the keys tile by tile; the softmax is kept up
// to date as keys arrive (online softmax, as in FlashAttention), so scores of a whole row never
// exist.
//
// Legend: B micro-batch, T sequence, C hidden, H heads, D = C/H head size, Q queries of a tile, S
// keys of a tile.
#include <cmath>

#include "executor/kernels/attention_util.h"
#include "executor/kernels/cpu_kernels.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Splat;
using simd::Store;
using simd::VecF;

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// The softmax of one query so far: scores' maximum, and the sum of exp(score - maximum).
struct RowState {
  float max = kMinusInf, sum = 0;
};

// scores -> exp(score - new maximum); returns what earlier results must be multiplied with.
float UpdateRow(float* scores_S, int64_t n, RowState& state) {
  VecF max = Splat(state.max);
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    max = simd::Max(simd::Keep(Load(scores_S + i, part), part, Splat(kMinusInf)), max);
  });
  const float new_max = simd::Max(max);
  VecF sum{};
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    const VecF e = simd::Exp(Load(scores_S + i, part) - new_max);
    sum += simd::Keep(e, part, VecF{});
    Store(scores_S + i, e, part);
  });
  const float correction = state.sum == 0 ? 0.0f : std::exp(state.max - new_max);
  state.sum = state.sum * correction + simd::Sum(sum);
  state.max = new_max;
  return correction;
}

struct Shape {
  int64_t T, C, H, D;
};

void Forward(const KernelCall& call, const Shape& s, int64_t b, int64_t h, int64_t q0,
             Scratch scratch) {
  const KernelArg &qkv_BT3C = Arg(call, 0), &out_BTC = Arg(call, 1);
  auto* lse_BHT = Arg(call, 2).as<float>();
  const int64_t rows = std::min(kQueryTile, s.T - q0), stride = 3 * s.C, D = s.D;
  const int64_t head = b * s.T * stride + h * D;  // query 0 of this head; key + C, value + 2C
  float* pack = scratch.Floats(kPackFloats / 2);
  float* scores_QS = scratch.Floats(kQueryTile * kKeyTile);
  float *q_tile = scratch.Floats(kQueryTile * D), *out_QD = scratch.Floats(kQueryTile * D);
  float *k_tile = scratch.Floats(kKeyTile * D), *v_tile = scratch.Floats(kKeyTile * D);
  RowState state[kQueryTile];

  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const FloatMatrix q_QD =
      ScaledHeadRows(qkv_BT3C, head + q0 * stride, stride, rows, D, scale, q_tile);
  ZeroFloats(out_QD, rows * D);
  for (int64_t k0 = 0; k0 < q0 + rows; k0 += kKeyTile) {
    const int64_t keys = std::min(kKeyTile, q0 + rows - k0);
    FloatMatrix k_SD = HeadRows(qkv_BT3C, head + s.C + k0 * stride, stride, keys, D, k_tile);
    const FloatMatrix v_SD =
        HeadRows(qkv_BT3C, head + 2 * s.C + k0 * stride, stride, keys, D, v_tile);
    k_SD.transposed = true;
    ZeroFloats(scores_QS, rows * keys);
    TileGemm(rows, keys, D, 1.0f, q_QD, k_SD, scores_QS, keys, pack, kPackFloats / 2);
    for (int64_t r = 0; r < rows; ++r) {
      float* scores_S = scores_QS + r * keys;
      const int64_t visible = std::clamp<int64_t>(q0 + r + 1 - k0, 0, keys);
      ZeroFloats(scores_S + visible, keys - visible);
      if (visible == 0) continue;
      const float correction = UpdateRow(scores_S, visible, state[r]);
      if (k0 == 0 || correction == 1.0f) continue;
      float* out_D = out_QD + r * D;
      simd::VectorLoop(D, [&](int64_t i, auto part) {
        Store(out_D + i, Load(out_D + i, part) * correction, part);
      });
    }
    TileGemm(rows, D, keys, 1.0f, {scores_QS, keys}, v_SD, out_QD, D, pack, kPackFloats / 2);
  }
  for (int64_t r = 0; r < rows; ++r) {
    WriteHeadRows(out_BTC, (b * s.T + q0 + r) * s.C + h * D, s.C, 1, D, out_QD + r * D,
                  1.0f / state[r].sum);
    lse_BHT[(b * s.H + h) * s.T + q0 + r] = state[r].max + std::log(state[r].sum);
  }
}

}  // namespace

void AttentionForward(const KernelCall& call) {
  const int64_t B = call.dims[0], T = call.dims[1], C = call.dims[2], H = call.dims[3];
  const Shape shape{T, C, H, C / H};
  const int64_t tiles = (T + kQueryTile - 1) / kQueryTile;
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(B * H * tiles, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / tiles;
      Forward(call, shape, head / H, head % H, task % tiles * kQueryTile, Scratch(pool, worker));
    }
  });
}

}  // namespace zeroplan::cpu
