// One token beside a cache of keys and values: against the double reference of whole attention, the
// table of all positions and plain sums. Legend: kernel_rows.inc's.
#include <algorithm>
#include <array>
#include <cmath>

#include "tests/executor/kernels/attention_reference.h"
#include "tests/executor/kernels/gelu_reference.h"
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

// The attention of one token at `last`, beside a cache of whole rows, in double.
Doubles AttendOne(const Shape& s, const Tensor& qkv_1N, const Tensor& cache, int64_t last) {
  const int64_t kept = 2 * s.G * s.D, sharing = s.H / s.G;
  const double scale = 1 / std::sqrt(static_cast<double>(s.D));
  Doubles out(static_cast<size_t>(s.H * s.D)), weights(static_cast<size_t>(last + 1));
  for (int64_t h = 0; h < s.H; ++h) {
    const int64_t key = h / sharing * s.D, value = (s.G + h / sharing) * s.D;
    double largest = -1e300, sum = 0;
    for (int64_t t = 0; t <= last; ++t) {
      double score = 0;
      for (int64_t d = 0; d < s.D; ++d) score += qkv_1N[h * s.D + d] * cache[t * kept + key + d];
      weights[static_cast<size_t>(t)] = score * scale;
      largest = std::max(largest, score * scale);
    }
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (int64_t t = 0; t <= last; ++t) {
      const double weight = weights[static_cast<size_t>(t)] / sum;
      for (int64_t d = 0; d < s.D; ++d) {
        out[static_cast<size_t>(h * s.D + d)] += weight * cache[t * kept + value + d];
      }
    }
  }
  return out;
}

TEST_CASE("a token's attention at the sizes of models: up to 4096 tokens, heads of every kind") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    // Keys of their own and shared by 2 to 20 query heads; sizes that vectors take, in one, two and
    // four of them a lane, and that they do not (18, 264).
    for (const Shape& s :
         {Shape{1, 4096, 4, 2, 64}, Shape{1, 4096, 8, 1, 128}, Shape{1, 1000, 7, 1, 80},
          Shape{1, 700, 3, 3, 40}, Shape{1, 300, 3, 1, 256}, Shape{1, 130, 20, 1, 96},
          Shape{1, 70, 2, 1, 264}, Shape{1, 520, 4, 2, 18}}) {
      CAPTURE(DtypeName(dtype));
      CAPTURE(FormatDims(KernelId::kAttentionForward, s.dims(), {}));
      const KernelDims dims = {s.T, s.H, s.G, s.D};
      const int64_t kept = 2 * s.G * s.D;
      const Tensor filled = Tensor::Random(rng, dtype, s.T * kept);
      for (const int64_t t : {int64_t{0}, int64_t{63}, int64_t{64}, s.T / 3, s.T - 1}) {
        CAPTURE(t);
        if (t >= s.T) continue;
        Tensor row = Tensor::Random(rng, dtype, s.QkvRow()), state = StateAt(t), cache = filled;
        Tensor out(dtype, s.OutRow()), want_cache = filled;
        for (int64_t i = 0; i < kept; ++i) want_cache.Set(t * kept + i, row[s.H * s.D + i]);
        bench.Run(KernelId::kAttendToken, dims, {&row, &state, &cache, &out});
        CHECK(cache == want_cache);
        // A score's D products come to some units of 2^-24 of its size, below 20; the result is off
        // by as much of values up to 5. 1e-6 is what is seen.
        CheckAllClose(out, AttendOne(s, row, want_cache, t), 1e-5, "out");
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

TEST_CASE("a row's product with a matrix: every dtype and layout, into fp32, and with GELU") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(2);
  for (Dtype dtype : FloatDtypes()) {
    // As many columns as one, two and four of them a warp; sizes that are no whole vectors.
    for (const auto& [K, N] : {std::array<int64_t, 2>{768, 2304},
                               {4104, 96},
                               {128, 8200},
                               {64, 16390},
                               {257, 100},
                               {72, 33}}) {
      Tensor a = Tensor::Random(rng, dtype, K), w = Tensor::Random(rng, dtype, K * N);
      Tensor bias = Tensor::Random(rng, dtype, N), residual = Tensor::Random(rng, dtype, N);
      for (const bool transposed : {false, true}) {
        CAPTURE(DtypeName(dtype));
        CAPTURE(K);
        CAPTURE(N);
        CAPTURE(transposed);
        Doubles product, with_bias, with_all, gelu;
        double largest = 0;
        for (int64_t n = 0; n < N; ++n) {
          double sum = 0, magnitude = std::abs(bias[n]) + std::abs(residual[n]);
          for (int64_t k = 0; k < K; ++k) {
            const double term = a[k] * w[transposed ? n * K + k : k * N + n];
            sum += term;
            magnitude += std::abs(term);
          }
          product.push_back(sum);
          with_bias.push_back(sum + bias[n]);
          with_all.push_back(sum + bias[n] + residual[n]);
          gelu.push_back(Gelu(sum + bias[n]));
          largest = std::max(largest, magnitude);
        }
        // fp32 sums of K terms are off by at most K * 2^-24 of the sum of absolute values.
        const double slack = static_cast<double>(K + 2) * 0x1p-24 * largest;
        const int flags = transposed ? kTransposed : 0;
        const KernelDims dims = {1, K, N};
        Tensor absent, logits(Dtype::kF32, N), y(dtype, N), pre(dtype, N), after(dtype, N);
        bench.Run(KernelId::kMatmulForward, dims, {&a, &w, &absent, &absent, &logits}, flags);
        CheckAllClose(logits, product, slack, "logits");
        bench.Run(KernelId::kMatmulForward, dims, {&a, &w, &bias, &residual, &y}, flags);
        CheckAllClose(y, with_all, slack, "y");
        bench.Run(KernelId::kMatmulGeluForward, dims, {&a, &w, &bias, &pre, &after}, flags);
        CheckAllClose(pre, with_bias, slack, "pre");
        // GELU's slope is below 1.13; its own error is some units of the last place.
        CheckAllClose(after, gelu, 1.13 * slack + 20 * 0x1p-24 * (1 + largest), "gelu");
      }
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
