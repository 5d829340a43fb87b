// The column-major products that stand for the rows' row-major ones, carried out by the library's
// definition on small integers and compared with the rows' definitions: exact.
// Legend: M rows, K inputs, N outputs; T sequence, C hidden, H heads, D = C/H.
#include "executor/kernels/cuda/gemm/gemm_layout.h"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zeroplan {
namespace {

using Ints = std::vector<int64_t>;

// Small, and different for every element and seed.
Ints Numbers(int64_t count, int64_t seed) {
  Ints numbers(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    numbers[static_cast<std::size_t>(i)] = (i * 7919 + seed * 104729) % 23 - 11;
  }
  return numbers;
}

// D = op(A) op(B) as cuBLAS defines it: element (row, column) of a matrix at row + column * ld.
// A leading dimension below the rows of the stored matrix is refused, as the library refuses it.
void ColumnMajorProduct(const GemmLayout& l, const int64_t* first, const int64_t* second,
                        int64_t* d) {
  REQUIRE(l.lda >= (l.transpose_a ? l.k : l.m));
  REQUIRE(l.ldb >= (l.transpose_b ? l.n : l.k));
  REQUIRE(l.ldd >= l.m);
  const int64_t* a = l.swapped ? second : first;
  const int64_t* b = l.swapped ? first : second;
  for (int64_t i = 0; i < l.batch; ++i) {
    for (int64_t column = 0; column < l.n; ++column) {
      for (int64_t row = 0; row < l.m; ++row) {
        int64_t sum = 0;
        for (int64_t x = 0; x < l.k; ++x) {
          sum += a[i * l.stride_a + (l.transpose_a ? x + row * l.lda : row + x * l.lda)] *
                 b[i * l.stride_b + (l.transpose_b ? column + x * l.ldb : x + column * l.ldb)];
        }
        d[i * l.stride_d + row + column * l.ldd] = sum;
      }
    }
  }
}

constexpr int64_t kUntouched = 1 << 20;

constexpr std::array<std::array<int64_t, 3>, 4> kLayouts = {
    {{2, 3, 5}, {5, 2, 3}, {1, 4, 3}, {6, 6, 1}}};

TEST_CASE("the layouts of the three matmul rows give the rows' products") {
  for (const auto& [M, K, N] : kLayouts) {
    for (bool transposed : {false, true}) {
      CAPTURE(M);
      CAPTURE(K);
      CAPTURE(N);
      CAPTURE(transposed);
      const Ints a = Numbers(M * K, 1), w = Numbers(K * N, 2), dy = Numbers(M * N, 3);
      const auto weight_at = [&](int64_t k, int64_t n) {
        return static_cast<std::size_t>(transposed ? n * K + k : k * N + n);
      };
      Ints y(static_cast<std::size_t>(M * N)), dx(a.size()), dw(w.size());
      for (int64_t m = 0; m < M; ++m) {
        for (int64_t k = 0; k < K; ++k) {
          for (int64_t n = 0; n < N; ++n) {
            const auto at_a = static_cast<std::size_t>(m * K + k),
                       at_y = static_cast<std::size_t>(m * N + n);
            y[at_y] += a[at_a] * w[weight_at(k, n)];
            dx[at_a] += dy[at_y] * w[weight_at(k, n)];
            dw[weight_at(k, n)] += a[at_a] * dy[at_y];
          }
        }
      }
      Ints got(y.size(), kUntouched);
      ColumnMajorProduct(ForwardLayout(M, K, N, transposed), a.data(), w.data(), got.data());
      CHECK(got == y);
      got.assign(dx.size(), kUntouched);
      ColumnMajorProduct(BackwardDataLayout(M, K, N, transposed), dy.data(), w.data(), got.data());
      CHECK(got == dx);
      got.assign(dw.size(), kUntouched);
      ColumnMajorProduct(BackwardWeightLayout(M, K, N, transposed), a.data(), dy.data(),
                         got.data());
      CHECK(got == dw);
    }
  }
}

TEST_CASE("the bias runs along the library's rows, a bias gradient along those of dy's operand") {
  // y and dw (as [K,N]) have N as m, dw as [N,K] has it as n: what the epilogues are chosen by.
  CHECK(ForwardLayout(2, 3, 5, false).m == 5);
  CHECK(ForwardLayout(2, 3, 5, true).m == 5);
  const GemmLayout plain = BackwardWeightLayout(2, 3, 5, false);
  CHECK(plain.swapped);  // A is dy
  CHECK(plain.m == 5);
  const GemmLayout transposed = BackwardWeightLayout(2, 3, 5, true);
  CHECK_FALSE(transposed.swapped);  // B is dy
  CHECK(transposed.n == 5);
}

TEST_CASE("the layouts of unfused attention read and write heads where they lie") {
  // Each query head with keys of its own, and two that share one: the second of each pair.
  for (const AttentionDims& s : {AttentionDims{1, 4, 2, 2, 3}, AttentionDims{1, 4, 4, 2, 3}}) {
    const int64_t T = s.T, D = s.D, N = s.QkvRow(), R = s.Sharing(), r = R - 1;
    const Ints qkv = Numbers(T * N, 1), probs = Numbers(s.H * T * T, 2);
    const Ints dout = Numbers(T * s.OutRow(), 3);
    // Of head g of the batch: its queries, keys and values, its rows of out, its square.
    const auto q_at = [&](int64_t g, int64_t t, int64_t d) {
      return static_cast<std::size_t>(t * N + s.QueryColumn(g * R + r) + d);
    };
    const auto k_at = [&](int64_t g, int64_t t, int64_t d) {
      return static_cast<std::size_t>(t * N + s.KeyColumn(g) + d);
    };
    const auto v_at = [&](int64_t g, int64_t t, int64_t d) {
      return static_cast<std::size_t>(t * N + s.ValueColumn(g) + d);
    };
    const auto out_at = [&](int64_t g, int64_t t, int64_t d) {
      return static_cast<std::size_t>(t * s.OutRow() + (g * R + r) * D + d);
    };
    const auto probs_at = [&](int64_t g, int64_t q, int64_t k) {
      return static_cast<std::size_t>(((g * R + r) * T + q) * T + k);
    };
    // Sums term(g, x, y, i) over i < count into want[at(g, x, y)], for x < T, y < width.
    const auto define = [&](std::size_t size, int64_t width, int64_t count, auto&& at,
                            auto&& term) {
      Ints want(size, kUntouched);  // what is not written must stay
      for (int64_t g = 0; g < s.G; ++g) {
        for (int64_t x = 0; x < T; ++x) {
          for (int64_t y = 0; y < width; ++y) {
            int64_t sum = 0;
            for (int64_t i = 0; i < count; ++i) sum += term(g, x, y, i);
            want[at(g, x, y)] = sum;
          }
        }
      }
      return want;
    };
    const auto run = [&](AttentionProduct product, const int64_t* first, const int64_t* second,
                         std::size_t size, std::size_t offset) {
      Ints got(size, kUntouched);
      ColumnMajorProduct(AttentionLayout(product, s), first, second, got.data() + offset);
      return got;
    };
    const int64_t *q = qkv.data() + q_at(0, 0, 0), *k = qkv.data() + k_at(0, 0, 0);
    const int64_t *v = qkv.data() + v_at(0, 0, 0), *p = probs.data() + probs_at(0, 0, 0);
    const int64_t* o = dout.data() + out_at(0, 0, 0);

    CHECK(run(AttentionProduct::kScores, q, k, probs.size(), probs_at(0, 0, 0)) ==
          define(probs.size(), T, D, probs_at, [&](int64_t g, int64_t x, int64_t y, int64_t d) {
            return qkv[q_at(g, x, d)] * qkv[k_at(g, y, d)];
          }));
    CHECK(run(AttentionProduct::kOut, p, v, dout.size(), out_at(0, 0, 0)) ==
          define(dout.size(), D, T, out_at, [&](int64_t g, int64_t x, int64_t d, int64_t i) {
            return probs[probs_at(g, x, i)] * qkv[v_at(g, i, d)];
          }));
    CHECK(run(AttentionProduct::kDProbs, o, v, probs.size(), probs_at(0, 0, 0)) ==
          define(probs.size(), T, D, probs_at, [&](int64_t g, int64_t x, int64_t y, int64_t d) {
            return dout[out_at(g, x, d)] * qkv[v_at(g, y, d)];
          }));
    CHECK(run(AttentionProduct::kDValue, p, o, qkv.size(), v_at(0, 0, 0)) ==
          define(qkv.size(), D, T, v_at, [&](int64_t g, int64_t x, int64_t d, int64_t i) {
            return probs[probs_at(g, i, x)] * dout[out_at(g, i, d)];
          }));
    CHECK(run(AttentionProduct::kDQuery, p, k, qkv.size(), q_at(0, 0, 0)) ==
          define(qkv.size(), D, T, q_at, [&](int64_t g, int64_t x, int64_t d, int64_t i) {
            return probs[probs_at(g, x, i)] * qkv[k_at(g, i, d)];
          }));
    CHECK(run(AttentionProduct::kDKey, p, q, qkv.size(), k_at(0, 0, 0)) ==
          define(qkv.size(), D, T, k_at, [&](int64_t g, int64_t x, int64_t d, int64_t i) {
            return probs[probs_at(g, i, x)] * qkv[q_at(g, i, d)];
          }));
  }
}

}  // namespace
}  // namespace zeroplan
