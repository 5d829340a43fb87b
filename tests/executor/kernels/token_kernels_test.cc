// One token beside a cache of keys and values: against the double reference of whole attention, the
// table of all positions and plain sums. Legend: kernel_rows.inc's.
#include <algorithm>
#include <array>

#include "tests/executor/kernels/attention_reference.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

using Shape = AttentionShape;

Tensor StateAt(int64_t position) {
  StepState state;
  state.position = static_cast<int32_t>(position);
  return Tensor::State(state);
}

// Row `row` of `columns` of a tensor, as one of its own.
Tensor Row(const Tensor& from, int64_t row, int64_t columns) {
  Tensor part(from.dtype(), columns);
  for (int64_t i = 0; i < columns; ++i) part.Set(i, from[row * columns + i]);
  return part;
}

TEST_CASE("a token's attention: rows of the whole one, whatever was kept by a prompt") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    // Lengths on both sides of the blocks of 256; grouped heads.
    for (const Shape& s : {Shape{1, 1, 1, 1, 2}, Shape{1, 7, 3, 3, 4}, Shape{1, 20, 6, 2, 16},
                           Shape{1, 258, 2, 1, 10}, Shape{1, 520, 4, 2, 8}}) {
      CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
      Tensor qkv = Tensor::Random(rng, dtype, s.qkv_size());
      const Doubles want = Attention(s, qkv.values());
      const KernelDims dims = {s.T, s.H, s.G, s.D};
      // The prompt's rows are there; what lies behind them is of no matter.
      const int64_t prompt = rng.Below(s.T);
      Tensor padded = Tensor::Random(rng, dtype, s.qkv_size());
      for (int64_t i = 0; i < prompt * s.QkvRow(); ++i) padded.Set(i, qkv[i]);
      Tensor cache(dtype, s.T * 2 * s.G * s.D), out(dtype, s.OutRow());
      bench.Run(KernelId::kKeepKeysValues, dims, {&padded, &cache});
      for (int64_t t = prompt; t < s.T; ++t) {
        CAPTURE(t);
        Tensor row = Row(qkv, t, s.QkvRow()), state = StateAt(t);
        bench.Run(KernelId::kAttendToken, dims, {&row, &state, &cache, &out});
        const auto begin = want.begin() + t * s.OutRow();
        // Sums of up to T products of numbers near 1, in fp32.
        CheckAllClose(out, Doubles(begin, begin + s.OutRow()), 1e-5, "out");
      }
      // The cache has the key and value heads of every row, as they are.
      for (int64_t t = 0; t < s.T; ++t) {
        for (int64_t i = 0; i < 2 * s.G * s.D; ++i) {
          if (cache[t * 2 * s.G * s.D + i] == qkv[s.Row(0, t) + s.H * s.D + i]) continue;
          FAIL("token " << t << ", element " << i);
        }
      }
    }
  }
}

TEST_CASE("a token's attention with scores far apart") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  const Shape s{1, 300, 1, 1, 8};
  Tensor qkv = Tensor::Random(rng, Dtype::kF32, s.qkv_size(), 6.0), out(Dtype::kF32, s.OutRow());
  Tensor cache(Dtype::kF32, s.T * 2 * s.D);
  const Doubles want = Attention(s, qkv.values());
  const KernelDims dims = {s.T, s.H, s.G, s.D};
  bench.Run(KernelId::kKeepKeysValues, dims, {&qkv, &cache});
  for (int64_t t : {0, 255, 256, 299}) {
    Tensor row = Row(qkv, t, s.QkvRow()), state = StateAt(t);
    bench.Run(KernelId::kAttendToken, dims, {&row, &state, &cache, &out});
    const auto begin = want.begin() + t * s.OutRow();
    // Scores up to about 150 carry an error of 150 * 8 * 2^-24 into the exponent; values reach 25.
    CheckAllClose(out, Doubles(begin, begin + s.OutRow()), 25 * 150 * 8 * 0x1p-24, "out");
  }
}

TEST_CASE("a token's embedding, and its row of the rotary table") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  constexpr int64_t kC = 1500, kV = 7, kT = 9;
  for (Dtype dtype : FloatDtypes()) {
    Tensor token = Tensor::Ints({5}), state = StateAt(8);
    Tensor wte = Tensor::Random(rng, dtype, kV * kC), wpe = Tensor::Random(rng, dtype, kT * kC);
    Tensor x(dtype, kC), absent;
    bench.Run(KernelId::kEmbedToken, {kC, kV}, {&token, &wte, &absent, &state, &x});
    CHECK(x == Row(wte, 5, kC));
    bench.Run(KernelId::kEmbedToken, {kC, kV}, {&token, &wte, &wpe, &state, &x});
    Doubles want;
    for (int64_t c = 0; c < kC; ++c) want.push_back(wte[5 * kC + c] + wpe[8 * kC + c]);
    CheckAllClose(x, want, 0x1p-21, "embedding");
  }
  for (const RotaryScaling kind : {RotaryScaling::kNone, RotaryScaling::kLinear,
                                   RotaryScaling::kLlama3, RotaryScaling::kYarn}) {
    constexpr int64_t kD = 12;
    bench.scalars = KernelScalars{500000, 8, 1, 4, 1.25f};
    Tensor table(Dtype::kF32, 2000 * kD), row(Dtype::kF32, kD);
    bench.Run(KernelId::kRotaryTable, {2000, kD, static_cast<int64_t>(kind), 512}, {&table});
    for (const int64_t position : {0, 1, 1999}) {
      Tensor state = StateAt(position);
      bench.Run(KernelId::kRotaryRow, {kD, static_cast<int64_t>(kind), 512}, {&state, &row});
      CHECK(row == Row(table, position, kD));
    }
  }
}

TEST_CASE("a row's product with a matrix, the same bits for every number of threads") {
  ZEROPLAN_TEST_RNG(rng);
  for (const auto& [K, N] : {std::array<int64_t, 2>{333, 1300}, {64, 512}, {1, 700}, {90, 1}}) {
    for (const bool transposed : {false, true}) {
      CAPTURE(N);
      CAPTURE(transposed);
      Tensor a = Tensor::Random(rng, Dtype::kF32, K), w = Tensor::Random(rng, Dtype::kF32, K * N);
      Tensor bias = Tensor::Random(rng, Dtype::kF32, N);
      Tensor residual = Tensor::Random(rng, Dtype::kF32, N);
      Doubles want;
      double largest = 0;
      for (int64_t n = 0; n < N; ++n) {
        double sum = bias[n] + residual[n], magnitude = std::abs(bias[n]) + std::abs(residual[n]);
        for (int64_t k = 0; k < K; ++k) {
          const double term = a[k] * w[transposed ? n * K + k : k * N + n];
          sum += term;
          magnitude += std::abs(term);
        }
        want.push_back(sum);
        largest = std::max(largest, magnitude);
      }
      Tensor y[2] = {Tensor(Dtype::kF32, N), Tensor(Dtype::kF32, N)};
      for (const int threads : {1, 3}) {
        Bench bench(threads);
        bench.Run(KernelId::kMatmulForward, {1, K, N}, {&a, &w, &bias, &residual, &y[threads / 3]},
                  transposed ? kTransposed : 0);
      }
      // fp32 sums of K terms are off by at most K * 2^-24 of the sum of absolute values.
      CheckAllClose(y[0], want, static_cast<double>(K + 2) * 0x1p-24 * largest, "y");
      CHECK(y[0] == y[1]);
    }
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test
