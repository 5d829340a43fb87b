// Causal attention with the probabilities in memory, as a GPU without a fused kernel does it by
// batched matrix products: the CPU's share in rehearsing such a plan. What is rounded to the
// arguments' dtype is what that GPU rounds: the probabilities before they weigh the values, the
// scores' gradients before they become those of queries and keys. Borders of documents are zeros in
// the probabilities, and so in the scores' gradients: the backward pass need not know them.
//
// With p = softmax(q k^T / sqrt(D)), o = p v: dv = p^T do; dp = do v^T; ds = p (dp - sum_S p dp);
// dq = ds k / sqrt(D); dk = ds^T q / sqrt(D).
//
// Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head size,
// N = (H+2G)*D, Q queries of a tile, S keys of a tile, K keys that the last query of a tile sees.
#include <cmath>

#include "executor/kernels/attention_util.h"
#include "executor/kernels/cpu_kernels.h"

namespace zeroplan::cpu {
namespace {

using simd::Load;
using simd::Splat;
using simd::Store;
using simd::VecF;

constexpr int64_t kPack = kPackFloats / 4;

// Head h of the queries of sequence b; all in elements.
struct UnfusedHead {
  UnfusedHead(const AttentionDims& dims, int64_t b, int64_t h)
      : T(dims.T),
        D(dims.D),
        stride(dims.QkvRow()),
        out_stride(dims.OutRow()),
        query(b * T * stride + dims.QueryColumn(h)),
        key(b * T * stride + dims.KeyColumn(h / dims.Sharing())),
        value(b * T * stride + dims.ValueColumn(h / dims.Sharing())),
        out(b * T * out_stride + h * D),
        probs((b * dims.H + h) * T * T),
        scale(1.0f / std::sqrt(static_cast<float>(D))) {}

  int64_t QueryAt(int64_t t) const { return query + t * stride; }
  int64_t KeyAt(int64_t t) const { return key + t * stride; }
  int64_t ValueAt(int64_t t) const { return value + t * stride; }
  int64_t OutAt(int64_t t) const { return out + t * out_stride; }
  int64_t ProbsAt(int64_t q, int64_t k) const { return probs + q * T + k; }

  int64_t T, D, stride, out_stride;
  int64_t query, key, value, out, probs;  // where this head begins
  float scale;
};

FloatMatrix Transpose(FloatMatrix matrix) {
  matrix.transposed = !matrix.transposed;
  return matrix;
}

// Calls fn(k0, keys) for the tiles of the keys [0, n).
template <typename Fn>
void ForEachKeyTile(int64_t n, Fn&& fn) {
  for (int64_t k0 = 0; k0 < n; k0 += kKeyTile) fn(k0, std::min(kKeyTile, n - k0));
}

// scores -> their softmax.
void SoftmaxRow(float* row, int64_t n) {
  VecF max = Splat(-std::numeric_limits<float>::infinity());
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    max = simd::Max(simd::Keep(Load(row + i, part), part, max), max);
  });
  const float row_max = simd::Max(max);
  VecF sum{};
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    const VecF e = simd::Exp(Load(row + i, part) - row_max);
    sum += simd::Keep(e, part, VecF{});
    Store(row + i, e, part);
  });
  const float inverse = 1.0f / simd::Sum(sum);
  simd::VectorLoop(
      n, [&](int64_t i, auto part) { Store(row + i, Load(row + i, part) * inverse, part); });
}

// dp -> ds, given p.
void SoftmaxBackwardRow(const float* p, float* dp, int64_t n) {
  VecF sum{};
  simd::VectorLoop(n, [&](int64_t i, auto part) { sum += Load(p + i, part) * Load(dp + i, part); });
  const float delta = simd::Sum(sum);
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    Store(dp + i, Load(p + i, part) * (Load(dp + i, part) - delta), part);
  });
}

// A row of fp32 to row q of an argument [.., T, T], zeros behind it.
void WriteProbsRow(const KernelArg& arg, const UnfusedHead& head, int64_t q, const float* row,
                   int64_t n) {
  Narrow(arg.dtype, row, n, ElementAt(arg, head.ProbsAt(q, 0)));
  std::memset(ElementAt(arg, head.ProbsAt(q, n)), 0,
              static_cast<size_t>(head.T - n) * DtypeBytes(arg.dtype));
}

void ForwardTile(const KernelCall& call, const UnfusedHead& head, const VisibleKeys& visible,
                 int64_t q0, Scratch scratch) {
  const KernelArg &qkv_BTN = Arg(call, 0), &out_BTHD = Arg(call, 1), &probs_BHTT = Arg(call, 2);
  const int64_t rows = std::min(kQueryTile, head.T - q0), K = q0 + rows, D = head.D;
  const int64_t stride = head.stride;
  float *pack = scratch.Floats(kPack), *scores_QK = scratch.Floats(rows * K);
  float *q_tile = scratch.Floats(rows * D), *key_tile = scratch.Floats(kKeyTile * D);
  float *probs_tile = scratch.Floats(rows * kKeyTile), *out_QD = scratch.Floats(rows * D);

  const FloatMatrix q_QD =
      ScaledHeadRows(qkv_BTN, head.QueryAt(q0), stride, rows, D, head.scale, q_tile);
  ZeroFloats(scores_QK, rows * K);
  ForEachKeyTile(K, [&](int64_t k0, int64_t keys) {
    const FloatMatrix k_SD = HeadRows(qkv_BTN, head.KeyAt(k0), stride, keys, D, key_tile);
    TileGemm(rows, keys, D, 1.0f, q_QD, Transpose(k_SD), scores_QK + k0, K, pack, kPack);
  });
  for (int64_t r = 0; r < rows; ++r) {
    float* row = scores_QK + r * K;
    const int64_t first = visible.First(q0 + r);
    ZeroFloats(row, first);
    SoftmaxRow(row + first, q0 + r + 1 - first);
    WriteProbsRow(probs_BHTT, head, q0 + r, row, q0 + r + 1);
  }
  ZeroFloats(out_QD, rows * D);
  ForEachKeyTile(K, [&](int64_t k0, int64_t keys) {
    const FloatMatrix p_QS =
        HeadRows(probs_BHTT, head.ProbsAt(q0, k0), head.T, rows, keys, probs_tile);
    const FloatMatrix v_SD = HeadRows(qkv_BTN, head.ValueAt(k0), stride, keys, D, key_tile);
    TileGemm(rows, D, keys, 1.0f, p_QS, v_SD, out_QD, D, pack, kPack);
  });
  WriteHeadRows(out_BTHD, head.OutAt(q0), head.out_stride, rows, D, out_QD);
}

// dprobs and the gradient of the queries [q0, q0 + rows).
void BackwardQueries(const KernelCall& call, const UnfusedHead& head, int64_t q0, Scratch scratch) {
  const KernelArg &dout_BTHD = Arg(call, 0), &qkv_BTN = Arg(call, 1), &probs_BHTT = Arg(call, 2);
  const KernelArg &dqkv_BTN = Arg(call, 3), &dprobs_BHTT = Arg(call, 4);
  const int64_t rows = std::min(kQueryTile, head.T - q0), K = q0 + rows, D = head.D;
  const int64_t stride = head.stride;
  float *pack = scratch.Floats(kPack), *dp_QK = scratch.Floats(rows * K);
  float *dout_tile = scratch.Floats(rows * D), *key_tile = scratch.Floats(kKeyTile * D);
  float *row_tile = scratch.Floats(K), *ds_tile = scratch.Floats(rows * kKeyTile);
  float* dq_QD = scratch.Floats(rows * D);

  const FloatMatrix dout_QD =
      HeadRows(dout_BTHD, head.OutAt(q0), head.out_stride, rows, D, dout_tile);
  ZeroFloats(dp_QK, rows * K);
  ForEachKeyTile(K, [&](int64_t k0, int64_t keys) {
    const FloatMatrix v_SD = HeadRows(qkv_BTN, head.ValueAt(k0), stride, keys, D, key_tile);
    TileGemm(rows, keys, D, 1.0f, dout_QD, Transpose(v_SD), dp_QK + k0, K, pack, kPack);
  });
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t visible = q0 + r + 1;
    const float* p = ReadBlock(probs_BHTT, head.ProbsAt(q0 + r, 0), visible, row_tile);
    SoftmaxBackwardRow(p, dp_QK + r * K, visible);
    WriteProbsRow(dprobs_BHTT, head, q0 + r, dp_QK + r * K, visible);
  }
  ZeroFloats(dq_QD, rows * D);
  ForEachKeyTile(K, [&](int64_t k0, int64_t keys) {
    const FloatMatrix ds_QS =
        HeadRows(dprobs_BHTT, head.ProbsAt(q0, k0), head.T, rows, keys, ds_tile);
    const FloatMatrix k_SD = HeadRows(qkv_BTN, head.KeyAt(k0), stride, keys, D, key_tile);
    TileGemm(rows, D, keys, 1.0f, ds_QS, k_SD, dq_QD, D, pack, kPack);
  });
  WriteHeadRows(dqkv_BTN, head.QueryAt(q0), stride, rows, D, dq_QD, head.scale);
}

// Gradients of the keys and values [k0, k0 + keys) of head g, from the queries that see them, of
// all heads that share it. REQUIRES: BackwardQueries is over for all of them.
void BackwardKeys(const KernelCall& call, const AttentionDims& dims, int64_t b, int64_t g,
                  int64_t k0, Scratch scratch) {
  const KernelArg &dout_BTHD = Arg(call, 0), &qkv_BTN = Arg(call, 1), &probs_BHTT = Arg(call, 2);
  const KernelArg &dqkv_BTN = Arg(call, 3), &dprobs_BHTT = Arg(call, 4);
  const int64_t T = dims.T, D = dims.D, stride = dims.QkvRow();
  const int64_t keys = std::min(kQueryTile, T - k0);
  float *pack = scratch.Floats(kPack), *probs_tile = scratch.Floats(kQueryTile * keys);
  float *q_tile = scratch.Floats(kQueryTile * D), *dout_tile = scratch.Floats(kQueryTile * D);
  float *dk_SD = scratch.Floats(keys * D), *dv_SD = scratch.Floats(keys * D);

  ZeroFloats(dk_SD, keys * D);
  ZeroFloats(dv_SD, keys * D);
  for (int64_t r = 0; r < dims.Sharing(); ++r) {
    const UnfusedHead head(dims, b, g * dims.Sharing() + r);
    for (int64_t q0 = k0; q0 < T; q0 += kQueryTile) {
      const int64_t rows = std::min(kQueryTile, T - q0);
      const auto tile_QS = [&](const KernelArg& arg) {
        return HeadRows(arg, head.ProbsAt(q0, k0), T, rows, keys, probs_tile);
      };
      const FloatMatrix dout_QD =
          HeadRows(dout_BTHD, head.OutAt(q0), head.out_stride, rows, D, dout_tile);
      TileGemm(keys, D, rows, 1.0f, Transpose(tile_QS(probs_BHTT)), dout_QD, dv_SD, D, pack, kPack);
      const FloatMatrix q_QD =
          ScaledHeadRows(qkv_BTN, head.QueryAt(q0), stride, rows, D, head.scale, q_tile);
      TileGemm(keys, D, rows, 1.0f, Transpose(tile_QS(dprobs_BHTT)), q_QD, dk_SD, D, pack, kPack);
    }
  }
  const UnfusedHead first(dims, b, g * dims.Sharing());
  WriteHeadRows(dqkv_BTN, first.KeyAt(k0), stride, keys, D, dk_SD);
  WriteHeadRows(dqkv_BTN, first.ValueAt(k0), stride, keys, D, dv_SD);
}

// Calls tile(sequence, head, first row, scratch) for every kQueryTile rows of `heads` heads.
template <typename Tile>
void ForEachTile(const KernelCall& call, const AttentionDims& dims, int64_t heads, Tile&& tile) {
  const int64_t tiles = (dims.T + kQueryTile - 1) / kQueryTile;
  ThreadPool& pool = *call.context.pool;
  pool.ParallelFor(dims.B * heads * tiles, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t head = task / tiles;
      tile(head / heads, head % heads, task % tiles * kQueryTile, Scratch(pool, worker));
    }
  });
}

}  // namespace

void UnfusedAttentionForward(const KernelCall& call) {
  const AttentionDims dims = AttentionDimsOf(call);
  ForEachTile(call, dims, dims.H, [&](int64_t b, int64_t h, int64_t q0, Scratch scratch) {
    ForwardTile(call, UnfusedHead(dims, b, h), VisibleKeys(Arg(call, 4), b, dims.T), q0, scratch);
  });
}

void UnfusedAttentionBackward(const KernelCall& call) {
  const AttentionDims dims = AttentionDimsOf(call);
  ForEachTile(call, dims, dims.H, [&](int64_t b, int64_t h, int64_t q0, Scratch scratch) {
    BackwardQueries(call, UnfusedHead(dims, b, h), q0, scratch);
  });
  ForEachTile(call, dims, dims.G, [&](int64_t b, int64_t g, int64_t k0, Scratch scratch) {
    BackwardKeys(call, dims, b, g, k0, scratch);
  });
}

}  // namespace zeroplan::cpu
