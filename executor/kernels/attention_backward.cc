// Causal attention, backward. Probabilities are made again from the saved log-sum-exp. One task is
// one head: it walks the keys tile by tile and, for each, the queries that see them, so that
// nothing is summed by two threads.
//
// With p = exp(q k / sqrt(D) - lse), o = p v: dv = p^T do; dp = do v^T; ds = p (dp - sum_D do o);
// dq = ds k / sqrt(D); dk = ds^T q / sqrt(D).
//
// Legend: B micro-batch, T sequence, C hidden, H heads, D = C/H head size, Q queries of a tile, S
// keys of a tile.
#include <cmath>

#include "executor/kernels/attention_util.h"
#include "executor/kernels/cpu_kernels.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Store;
using simd::VecF;

// Smaller tiles of keys than forward: all of a tile's scores beyond the diagonal are wasted work.
constexpr int64_t kBackwardKeyTile = kQueryTile;
constexpr int64_t kBackwardPackFloats = kPackFloats / 4;

struct Buffers {
  Buffers(Scratch scratch, int64_t T, int64_t D)
      : pack(scratch.Floats(kBackwardPackFloats)),
        p_QS(scratch.Floats(kQueryTile * kBackwardKeyTile)),
        ds_QS(scratch.Floats(kQueryTile * kBackwardKeyTile)),
        q_tile(scratch.Floats(kQueryTile * D)),
        dout_tile(scratch.Floats(kQueryTile * D)),
        k_tile(scratch.Floats(kBackwardKeyTile * D)),
        v_tile(scratch.Floats(kBackwardKeyTile * D)),
        dk_SD(scratch.Floats(kBackwardKeyTile * D)),
        dv_SD(scratch.Floats(kBackwardKeyTile * D)),
        delta_T(scratch.Floats(T)),
        dq_TD(scratch.Floats(T * D)) {}
  float *pack, *p_QS, *ds_QS, *q_tile, *dout_tile, *k_tile, *v_tile, *dk_SD, *dv_SD, *delta_T,
      *dq_TD;
};

struct Head {
  int64_t T, C, D;
  int64_t qkv;  // first element of query 0 in qkv; key + C, value + 2C
  int64_t out;  // first element in out
  const float* lse_T;
};

// sum_D dout * out for each query.
void Deltas(const KernelArg& dout, const KernelArg& out, const Head& head, Buffers& buffers) {
  for (int64_t t = 0; t < head.T; ++t) {
    const int64_t first = head.out + t * head.C;
    const float* dout_D = ReadBlock(dout, first, head.D, buffers.dout_tile);
    const float* out_D = ReadBlock(out, first, head.D, buffers.q_tile);
    VecF sum{};
    simd::VectorLoop(head.D, [&](int64_t i, auto part) {
      sum += Load(dout_D + i, part) * Load(out_D + i, part);
    });
    buffers.delta_T[t] = simd::Sum(sum);
  }
}

// p: scores -> probabilities, ds: dp -> ds, for the queries [q0, q0 + rows) and keys [k0, k0 +
// keys).
void SoftmaxBackward(const Head& head, int64_t q0, int64_t rows, int64_t k0, int64_t keys,
                     Buffers& buffers) {
  for (int64_t r = 0; r < rows; ++r) {
    float *p_S = buffers.p_QS + r * keys, *ds_S = buffers.ds_QS + r * keys;
    const int64_t visible = std::clamp<int64_t>(q0 + r + 1 - k0, 0, keys);
    ZeroFloats(p_S + visible, keys - visible);
    ZeroFloats(ds_S + visible, keys - visible);
    const float lse = head.lse_T[q0 + r], delta = buffers.delta_T[q0 + r];
    simd::VectorLoop(visible, [&](int64_t i, auto part) {
      const VecF p = simd::Exp(Load(p_S + i, part) - lse);
      Store(p_S + i, p, part);
      Store(ds_S + i, p * (Load(ds_S + i, part) - delta), part);
    });
  }
}

void Backward(const KernelCall& call, const Head& head, Scratch scratch) {
  const KernelArg &dout_BTC = Arg(call, 0), &qkv_BT3C = Arg(call, 1), &out_BTC = Arg(call, 2);
  const KernelArg& dqkv_BT3C = Arg(call, 4);
  const int64_t T = head.T, C = head.C, D = head.D, stride = 3 * C;
  Buffers buffers(scratch, T, D);
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const auto gemm = [&](int64_t M, int64_t N, int64_t K, const FloatMatrix& a, const FloatMatrix& b,
                        float* c) {
    TileGemm(M, N, K, 1.0f, a, b, c, N, buffers.pack, kBackwardPackFloats);
  };
  const auto transpose = [](FloatMatrix matrix) {
    matrix.transposed = !matrix.transposed;
    return matrix;
  };
  Deltas(dout_BTC, out_BTC, head, buffers);
  ZeroFloats(buffers.dq_TD, T * D);
  for (int64_t k0 = 0; k0 < T; k0 += kBackwardKeyTile) {
    const int64_t keys = std::min(kBackwardKeyTile, T - k0);
    const FloatMatrix k_SD =
        HeadRows(qkv_BT3C, head.qkv + C + k0 * stride, stride, keys, D, buffers.k_tile);
    const FloatMatrix v_SD =
        HeadRows(qkv_BT3C, head.qkv + 2 * C + k0 * stride, stride, keys, D, buffers.v_tile);
    ZeroFloats(buffers.dk_SD, keys * D);
    ZeroFloats(buffers.dv_SD, keys * D);
    for (int64_t q0 = k0 / kQueryTile * kQueryTile; q0 < T; q0 += kQueryTile) {
      const int64_t rows = std::min(kQueryTile, T - q0);
      const FloatMatrix q_QD =
          ScaledHeadRows(qkv_BT3C, head.qkv + q0 * stride, stride, rows, D, scale, buffers.q_tile);
      const FloatMatrix dout_QD =
          HeadRows(dout_BTC, head.out + q0 * C, C, rows, D, buffers.dout_tile);
      const FloatMatrix p_QS{buffers.p_QS, keys}, ds_QS{buffers.ds_QS, keys};
      ZeroFloats(buffers.p_QS, rows * keys);
      ZeroFloats(buffers.ds_QS, rows * keys);
      gemm(rows, keys, D, q_QD, transpose(k_SD), buffers.p_QS);
      gemm(rows, keys, D, dout_QD, transpose(v_SD), buffers.ds_QS);
      SoftmaxBackward(head, q0, rows, k0, keys, buffers);
      gemm(keys, D, rows, transpose(p_QS), dout_QD, buffers.dv_SD);
      gemm(keys, D, rows, transpose(ds_QS), q_QD, buffers.dk_SD);
      gemm(rows, D, keys, ds_QS, k_SD, buffers.dq_TD + q0 * D);
    }
    WriteHeadRows(dqkv_BT3C, head.qkv + C + k0 * stride, stride, keys, D, buffers.dk_SD);
    WriteHeadRows(dqkv_BT3C, head.qkv + 2 * C + k0 * stride, stride, keys, D, buffers.dv_SD);
  }
  WriteHeadRows(dqkv_BT3C, head.qkv, stride, T, D, buffers.dq_TD, scale);
}

}  // namespace

void AttentionBackward(const KernelCall& call) {
  const int64_t B = call.dims[0], T = call.dims[1], C = call.dims[2], H = call.dims[3];
  const int64_t D = C / H;
  const auto* lse_BHT = Arg(call, 3).as<const float>();
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(B * H, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / H, h = task % H;
      const Head head{T, C, D, b * T * 3 * C + h * D, b * T * C + h * D, lse_BHT + task * T};
      Backward(call, head, Scratch(pool, worker));
    }
  });
}

}  // namespace zeroplan::cpu
