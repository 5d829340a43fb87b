// Causal attention, forward. A tile of queries meets the keys tile by tile; the softmax is kept up
// to date as keys arrive (online softmax, as in FlashAttention), so scores of a whole row never
// exist.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size,
// N = (H+2G)*D, Q queries of a tile, S keys of a tile.
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

void Forward(const KernelCall& call, const AttentionDims& s, int64_t b, int64_t h, int64_t q0,
             Scratch scratch) {
  const KernelArg &qkv_BTN = Arg(call, 0), &out_BTHD = Arg(call, 1);
  auto* lse_BHT = Arg(call, 2).as<float>();
  const int64_t rows = std::min(kQueryTile, s.T - q0), stride = s.QkvRow(), D = s.D;
  // Where token 0 of the sequence has this head's query, and its keys and values.
  const int64_t token = b * s.T * stride, g = h / s.Sharing();
  const int64_t query = token + s.QueryColumn(h), key = token + s.KeyColumn(g),
                value = token + s.ValueColumn(g);
  float* pack = scratch.Floats(kPackFloats / 2);
  float* scores_QS = scratch.Floats(kQueryTile * kKeyTile);
  float *q_tile = scratch.Floats(kQueryTile * D), *out_QD = scratch.Floats(kQueryTile * D);
  float *k_tile = scratch.Floats(kKeyTile * D), *v_tile = scratch.Floats(kKeyTile * D);
  RowState state[kQueryTile];
  const VisibleKeys visible(Arg(call, 4), b, s.T);
  const int64_t first = visible.First(q0);

  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const FloatMatrix q_QD =
      ScaledHeadRows(qkv_BTN, query + q0 * stride, stride, rows, D, scale, q_tile);
  ZeroFloats(out_QD, rows * D);
  for (int64_t k0 = first; k0 < q0 + rows; k0 += kKeyTile) {
    const int64_t keys = std::min(kKeyTile, q0 + rows - k0);
    FloatMatrix k_SD = HeadRows(qkv_BTN, key + k0 * stride, stride, keys, D, k_tile);
    const FloatMatrix v_SD = HeadRows(qkv_BTN, value + k0 * stride, stride, keys, D, v_tile);
    k_SD.transposed = true;
    ZeroFloats(scores_QS, rows * keys);
    TileGemm(rows, keys, D, 1.0f, q_QD, k_SD, scores_QS, keys, pack, kPackFloats / 2);
    for (int64_t r = 0; r < rows; ++r) {
      float* scores_S = scores_QS + r * keys;
      const VisibleKeys::Range seen = visible.Within(q0 + r, k0, keys);
      ZeroHidden(scores_S, seen, keys);
      if (seen.begin == seen.end) continue;
      const float correction = UpdateRow(scores_S + seen.begin, seen.end - seen.begin, state[r]);
      if (k0 == first || correction == 1.0f) continue;
      float* out_D = out_QD + r * D;
      simd::VectorLoop(D, [&](int64_t i, auto part) {
        Store(out_D + i, Load(out_D + i, part) * correction, part);
      });
    }
    TileGemm(rows, D, keys, 1.0f, {scores_QS, keys}, v_SD, out_QD, D, pack, kPackFloats / 2);
  }
  for (int64_t r = 0; r < rows; ++r) {
    WriteHeadRows(out_BTHD, (b * s.T + q0 + r) * s.OutRow() + h * D, s.OutRow(), 1, D,
                  out_QD + r * D, 1.0f / state[r].sum);
    lse_BHT[(b * s.H + h) * s.T + q0 + r] = state[r].max + std::log(state[r].sum);
  }
}

}  // namespace

void AttentionForward(const KernelCall& call) {
  const AttentionDims dims = AttentionDimsOf(call);
  const int64_t tiles = (dims.T + kQueryTile - 1) / kQueryTile;
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(dims.B * dims.H * tiles, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / tiles;
      Forward(call, dims, head / dims.H, head % dims.H, task % tiles * kQueryTile,
              Scratch(pool, worker));
    }
  });
}

}  // namespace zeroplan::cpu
