// Expresses row-major matmuls for a library that supports column-major matrices only. Nothing is
// copied: a dense row-major X of R rows and S columns, read by columns with leading dimension S, is
// X^T, so every matmul below is the transpose of the wanted one.
//
// Legend: M rows (tokens), K inputs, N outputs; B micro-batch, T sequence, H heads of queries, G of
// keys and values, D head size, N of attention (H+2G)*D. Lower case m, n, k are the library's: D_mn
// = op(A)_mk op(B)_kn, column-major.
#pragma once

#include <cstdint>

#include "executor/kernels/attention_dims.h"

namespace zeroplan {

struct GemmLayout {
  bool transpose_a = false, transpose_b = false;
  bool swapped = false;  // A is the second of the two inputs, else the first
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;  // elements
  // Batched matmuls: elements from one to the next.
  int64_t batch = 1, stride_a = 0, stride_b = 0, stride_d = 0;
};

// y_MN = a_MK * w. Inputs (a, w); w is stored as [K,N], if transposed as [N,K].
inline GemmLayout ForwardLayout(int64_t M, int64_t K, int64_t N, bool transposed) {
  // y^T (N x M) = w^T (N x K) * a^T (K x M). Read by columns, w stored as [K,N] is w^T already, and
  // w stored as [N,K] is K x N and must be transposed; a is a^T.
  return {.transpose_a = transposed,
          .swapped = true,
          .m = N,
          .n = M,
          .k = K,
          .lda = transposed ? K : N,
          .ldb = K,
          .ldd = N};
}

// dx_MK = dy_MN * w^T. Inputs (dy, w); w as in forward.
inline GemmLayout BackwardDataLayout(int64_t M, int64_t K, int64_t N, bool transposed) {
  // dx^T (K x M) = w (K x N) * dy^T (N x M). Read by columns, w stored as [K,N] is N x K and must
  // be transposed, and w stored as [N,K] is K x N already; dy is dy^T.
  return {.transpose_a = !transposed,
          .swapped = true,
          .m = K,
          .n = M,
          .k = N,
          .lda = transposed ? K : N,
          .ldb = N,
          .ldd = K};
}

// dw = a^T * dy, stored as w. Inputs (a_MK, dy_MN).
inline GemmLayout BackwardWeightLayout(int64_t M, int64_t K, int64_t N, bool transposed) {
  // [K,N]: dw^T (N x K) = dy^T (N x M) * a (M x K). Read by columns, dy is dy^T, and a is K x M and
  // must be transposed.
  if (!transposed) {
    return {
        .transpose_b = true, .swapped = true, .m = N, .n = K, .k = M, .lda = N, .ldb = K, .ldd = N};
  }
  // [N,K]: read by columns, dw is K x N = a^T (K x M) * dy (M x N); a is a^T, and dy is N x M and
  // must be transposed.
  return {.transpose_b = true, .m = K, .n = N, .k = M, .lda = K, .ldb = N, .ldd = K};
}

// The matmuls of unfused attention for G query heads of one sequence, one of each H/G that share
// keys. q, k, v (and their gradients) are T rows of D within qkv_TN; out and dout T rows of D
// within [T,H,D]; probs, dprobs [H,T,T]. All inputs are given as (first, second), from the first of
// the heads on.
enum class AttentionProduct : uint8_t {
  kScores,  // (q, k)       -> probs:  S = q k^T
  kOut,     // (probs, v)   -> out:    O = P v
  kDValue,  // (probs, dout)-> dv:    dV = P^T dO
  kDProbs,  // (dout, v)    -> dprobs: dP = dO v^T
  kDQuery,  // (ds, k)      -> dq:    dQ = dS k
  kDKey,    // (ds, q)      -> dk:    dK = dS^T q
};

inline GemmLayout AttentionLayout(AttentionProduct product, const AttentionDims& dims) {
  const int64_t T = dims.T, D = dims.D, row = dims.QkvRow(), out_row = dims.OutRow();
  // Elements from one head of the batch to the next: of queries, of keys, of squares.
  const int64_t queries = dims.Sharing() * D, keys = D, squares = dims.Sharing() * T * T;
  // [T,T] = x y^T of rows of D: by columns (x y^T)^T = y x^T; y is D x T: transposed, x is x^T.
  const auto scores = [&](int64_t ld_x) {
    return GemmLayout{.transpose_a = true,
                      .swapped = true,
                      .m = T,
                      .n = T,
                      .k = D,
                      .lda = row,
                      .ldb = ld_x,
                      .ldd = T,
                      .batch = dims.G,
                      .stride_a = keys,
                      .stride_b = queries,
                      .stride_d = squares};
  };
  // Rows of D = op(p) x, p [T,T]: by columns its transpose x^T op(p)^T; x is x^T, p is p^T, so only
  // op = transpose needs a transposition.
  const auto weighted = [&](bool transpose_p, int64_t ld_x, int64_t stride_x, int64_t ld_out,
                            int64_t stride_out) {
    return GemmLayout{.transpose_b = transpose_p,
                      .swapped = true,
                      .m = D,
                      .n = T,
                      .k = T,
                      .lda = ld_x,
                      .ldb = T,
                      .ldd = ld_out,
                      .batch = dims.G,
                      .stride_a = stride_x,
                      .stride_b = squares,
                      .stride_d = stride_out};
  };
  switch (product) {
    case AttentionProduct::kScores:
      return scores(row);
    case AttentionProduct::kOut:
      return weighted(false, row, keys, out_row, queries);
    case AttentionProduct::kDValue:
      return weighted(true, out_row, queries, row, keys);
    case AttentionProduct::kDProbs:
      return scores(out_row);
    case AttentionProduct::kDQuery:
      return weighted(false, row, keys, row, queries);
    case AttentionProduct::kDKey:
      return weighted(true, row, queries, row, keys);
  }
  return {};
}

}  // namespace zeroplan
