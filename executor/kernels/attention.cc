#include <cmath>

#include "core/base/error.h"
#include "executor/kernels/attention_util.h"
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

AttentionDims AttentionDimsOf(const KernelCall& call) {
  const auto [B, T, H, G, D] = FirstDims<5>(call.dims);
  ZEROPLAN_CHECK(G > 0 && H % G == 0, "{} heads of queries, {} of keys", H, G);
  return {B, T, H, G, D};
}

}  // namespace zeroplan

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Splat;
using simd::Store;
using simd::VecF;

// Causal attention, forward. A tile of queries meets the keys tile by tile; the softmax is kept up
// to date as keys arrive (online softmax, as in FlashAttention), so scores of a whole row never
// exist.
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size,
// N = (H+2G)*D, Q queries of a tile, S keys of a tile.

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

// Causal attention, backward. Probabilities are made again from the saved log-sum-exp. One task is
// one head of keys: it walks the keys tile by tile and, for each, the queries that see them, of all
// the heads that share these keys, so that nothing is summed by two threads.
//
// With p = exp(q k / sqrt(D) - lse), o = p v: dv = p^T do; dp = do v^T; ds = p (dp - sum_D do o);
// dq = ds k / sqrt(D); dk = ds^T q / sqrt(D).
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, R = H/G, D head
// size, N = (H+2G)*D, Q queries of a tile, S keys of a tile.

namespace {

// Smaller tiles of keys than forward: all of a tile's scores beyond the diagonal are wasted work.
constexpr int64_t kBackwardKeyTile = kQueryTile;
constexpr int64_t kBackwardPackFloats = kPackFloats / 4;

struct Buffers {
  Buffers(Scratch scratch, int64_t R, int64_t T, int64_t D)
      : pack(scratch.Floats(kBackwardPackFloats)),
        p_QS(scratch.Floats(kQueryTile * kBackwardKeyTile)),
        ds_QS(scratch.Floats(kQueryTile * kBackwardKeyTile)),
        q_tile(scratch.Floats(kQueryTile * D)),
        dout_tile(scratch.Floats(kQueryTile * D)),
        k_tile(scratch.Floats(kBackwardKeyTile * D)),
        v_tile(scratch.Floats(kBackwardKeyTile * D)),
        dk_SD(scratch.Floats(kBackwardKeyTile * D)),
        dv_SD(scratch.Floats(kBackwardKeyTile * D)),
        delta_RT(scratch.Floats(R * T)),
        dq_RTD(scratch.Floats(R * T * D)) {}
  float *pack, *p_QS, *ds_QS, *q_tile, *dout_tile, *k_tile, *v_tile, *dk_SD, *dv_SD, *delta_RT,
      *dq_RTD;
};

// A head of queries. First elements of its token 0 in qkv and in out.
struct Head {
  int64_t query, out;
  const float* lse_T;
  float *delta_T, *dq_TD;
};

// sum_D dout * out for each query.
void Deltas(const KernelArg& dout, const KernelArg& out, const AttentionDims& dims,
            const Head& head, Buffers& buffers) {
  const int64_t D = dims.D;
  for (int64_t t = 0; t < dims.T; ++t) {
    const int64_t first = head.out + t * dims.OutRow();
    const float* dout_D = ReadBlock(dout, first, D, buffers.dout_tile);
    const float* out_D = ReadBlock(out, first, D, buffers.q_tile);
    VecF sum{};
    simd::VectorLoop(
        D, [&](int64_t i, auto part) { sum += Load(dout_D + i, part) * Load(out_D + i, part); });
    head.delta_T[t] = simd::Sum(sum);
  }
}

// p: scores -> probabilities, ds: dp -> ds, for the queries [q0, q0 + rows) and keys [k0, k0 +
// keys).
void SoftmaxBackward(const Head& head, const VisibleKeys& visible, int64_t q0, int64_t rows,
                     int64_t k0, int64_t keys, Buffers& buffers) {
  for (int64_t r = 0; r < rows; ++r) {
    float *p_S = buffers.p_QS + r * keys, *ds_S = buffers.ds_QS + r * keys;
    const VisibleKeys::Range seen = visible.Within(q0 + r, k0, keys);
    ZeroHidden(p_S, seen, keys);
    ZeroHidden(ds_S, seen, keys);
    p_S += seen.begin;
    ds_S += seen.begin;
    const float lse = head.lse_T[q0 + r], delta = head.delta_T[q0 + r];
    simd::VectorLoop(seen.end - seen.begin, [&](int64_t i, auto part) {
      const VecF p = simd::Exp(Load(p_S + i, part) - lse);
      Store(p_S + i, p, part);
      Store(ds_S + i, p * (Load(ds_S + i, part) - delta), part);
    });
  }
}

// Key head g of sequence b.
void Backward(const KernelCall& call, const AttentionDims& dims, int64_t b, int64_t g,
              Scratch scratch) {
  const KernelArg &dout_BTHD = Arg(call, 0), &qkv_BTN = Arg(call, 1), &out_BTHD = Arg(call, 2);
  const auto* lse_BHT = Arg(call, 3).as<const float>();
  const KernelArg& dqkv_BTN = Arg(call, 4);
  const int64_t T = dims.T, D = dims.D, R = dims.Sharing();
  const int64_t stride = dims.QkvRow(), out_stride = dims.OutRow();
  const int64_t token = b * T * stride;
  const int64_t key = token + dims.KeyColumn(g), value = token + dims.ValueColumn(g);
  Buffers buffers(scratch, R, T, D);
  const VisibleKeys visible(Arg(call, 6), b, T);
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const auto gemm = [&](int64_t m, int64_t n, int64_t k, const FloatMatrix& x, const FloatMatrix& y,
                        float* to) {
    TileGemm(m, n, k, 1.0f, x, y, to, n, buffers.pack, kBackwardPackFloats);
  };
  const auto transpose = [](FloatMatrix matrix) {
    matrix.transposed = !matrix.transposed;
    return matrix;
  };
  const auto head_at = [&](int64_t r) {
    const int64_t h = g * R + r;
    return Head{token + dims.QueryColumn(h), b * T * out_stride + h * D,
                lse_BHT + (b * dims.H + h) * T, buffers.delta_RT + r * T,
                buffers.dq_RTD + r * T * D};
  };
  for (int64_t r = 0; r < R; ++r) Deltas(dout_BTHD, out_BTHD, dims, head_at(r), buffers);
  ZeroFloats(buffers.dq_RTD, R * T * D);
  for (int64_t k0 = 0; k0 < T; k0 += kBackwardKeyTile) {
    const int64_t keys = std::min(kBackwardKeyTile, T - k0);
    const FloatMatrix k_SD = HeadRows(qkv_BTN, key + k0 * stride, stride, keys, D, buffers.k_tile);
    const FloatMatrix v_SD =
        HeadRows(qkv_BTN, value + k0 * stride, stride, keys, D, buffers.v_tile);
    ZeroFloats(buffers.dk_SD, keys * D);
    ZeroFloats(buffers.dv_SD, keys * D);
    for (int64_t r = 0; r < R; ++r) {
      const Head head = head_at(r);
      for (int64_t q0 = k0 / kQueryTile * kQueryTile; q0 < T; q0 += kQueryTile) {
        if (visible.First(q0) >= k0 + keys) break;  // nor do those behind see these keys
        const int64_t rows = std::min(kQueryTile, T - q0);
        const FloatMatrix q_QD = ScaledHeadRows(qkv_BTN, head.query + q0 * stride, stride, rows, D,
                                                scale, buffers.q_tile);
        const FloatMatrix dout_QD =
            HeadRows(dout_BTHD, head.out + q0 * out_stride, out_stride, rows, D, buffers.dout_tile);
        const FloatMatrix p_QS{buffers.p_QS, keys}, ds_QS{buffers.ds_QS, keys};
        ZeroFloats(buffers.p_QS, rows * keys);
        ZeroFloats(buffers.ds_QS, rows * keys);
        gemm(rows, keys, D, q_QD, transpose(k_SD), buffers.p_QS);
        gemm(rows, keys, D, dout_QD, transpose(v_SD), buffers.ds_QS);
        SoftmaxBackward(head, visible, q0, rows, k0, keys, buffers);
        gemm(keys, D, rows, transpose(p_QS), dout_QD, buffers.dv_SD);
        gemm(keys, D, rows, transpose(ds_QS), q_QD, buffers.dk_SD);
        gemm(rows, D, keys, ds_QS, k_SD, head.dq_TD + q0 * D);
      }
    }
    WriteHeadRows(dqkv_BTN, key + k0 * stride, stride, keys, D, buffers.dk_SD);
    WriteHeadRows(dqkv_BTN, value + k0 * stride, stride, keys, D, buffers.dv_SD);
  }
  for (int64_t r = 0; r < R; ++r) {
    const Head head = head_at(r);
    WriteHeadRows(dqkv_BTN, head.query, stride, T, D, head.dq_TD, scale);
  }
}

}  // namespace

void AttentionBackward(const KernelCall& call) {
  const AttentionDims dims = AttentionDimsOf(call);
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(dims.B * dims.G, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task) {
      Backward(call, dims, task / dims.G, task % dims.G, Scratch(pool, worker));
    }
  });
}

}  // namespace zeroplan::cpu
