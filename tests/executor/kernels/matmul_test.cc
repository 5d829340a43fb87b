// Matrix products against double sums. Legend: M rows, K inputs, N outputs.
#include <array>

#include "tests/executor/kernels/gelu_reference.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {
namespace {

struct Product {
  Doubles value, magnitude;  // sums of terms, and of their absolute values
  Doubles product = {};      // value before Add; empty without
  Doubles added = {};        // what Add added; empty without
  Doubles between = {};      // absolute values of what may be rounded before all is added up
};

// c_MN = op(a) op(b), element (i, j) of an operand at [i * columns + j], or transposed.
Product Multiply(int64_t M, int64_t N, int64_t K, const Tensor& a, bool a_transposed,
                 const Tensor& b, bool b_transposed) {
  Product c{Doubles(static_cast<size_t>(M * N)), Doubles(static_cast<size_t>(M * N))};
  const Doubles av = a.values(), bv = b.values();
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < K; ++k) {
        const double term = av[static_cast<size_t>(a_transposed ? k * M + m : m * K + k)] *
                            bv[static_cast<size_t>(b_transposed ? n * K + k : k * N + n)];
        sum += term;
        magnitude += std::abs(term);
      }
      c.value[static_cast<size_t>(m * N + n)] = sum;
      c.magnitude[static_cast<size_t>(m * N + n)] = magnitude;
    }
  }
  return c;
}

// fp32 sums of K terms, in any order, are off by at most K * 2^-24 of the sum of absolute values.
// On a GPU some of the library's algorithms round the product to the dtype of the result before
// they add what was there, or the product and the residual before they add the bias; and bias and
// residual are added up and rounded first where the library has no algorithm for them.
void Check(const Tensor& got, const Product& want, int64_t K, const std::string& what) {
  for (int64_t i = 0; i < got.size(); ++i) {
    const auto s = static_cast<size_t>(i);
    double slack = static_cast<double>(K + 2) * 0x1p-24 * want.magnitude[s];
    if (kOnGpu && !want.between.empty()) slack += RoundOff(got.dtype()) * want.between[s];
    if (Close(got[i], want.value[s], got.dtype(), slack)) continue;
    FAIL_CHECK(what << "[" << i << "]: got " << got[i] << ", want " << want.value[s] << ", slack "
                    << slack);
    return;
  }
}

void Add(Product& p, const Tensor& t, int64_t period) {
  const bool again = !p.added.empty();
  if (!again) p.product = p.value;
  p.added.resize(p.value.size());
  p.between.resize(p.value.size());
  for (size_t i = 0; i < p.value.size(); ++i) {
    const double v = t[static_cast<int64_t>(i) % period];
    p.added[i] += v;
    p.between[i] +=
        again ? std::max(std::abs(p.value[i]), std::abs(p.product[i] + v)) + std::abs(p.added[i])
              : std::abs(p.value[i]);
    p.value[i] += v;
    p.magnitude[i] += std::abs(v);
  }
}

constexpr std::array<std::array<int64_t, 3>, 7> kShapes = {{{1, 1, 1},
                                                            {5, 7, 3},
                                                            {16, 48, 48},
                                                            {33, 65, 97},
                                                            {128, 64, 192},
                                                            {1, 300, 50},
                                                            {70, 701, 31}}};

void ForEachCase(Rng& rng, auto&& fn) {
  // Scratch of the default size, and so little that 16-bit operands need many tiles.
  for (size_t scratch : {size_t{8} << 20, size_t{640} << 10}) {
    for (int threads : {1, 3}) {
      Bench bench(threads, scratch);
      for (const auto& [M, K, N] : kShapes) {
        const Dtype in = FloatDtypes()[static_cast<size_t>(rng.Below(3))];
        // A GPU's library takes factors of one dtype, and sums in theirs or in fp32.
        const Dtype weight =
            kOnGpu || rng.Below(2) == 0 ? in : FloatDtypes()[static_cast<size_t>(rng.Below(3))];
        const Dtype other = kOnGpu ? Dtype::kF32 : FloatDtypes()[static_cast<size_t>(rng.Below(3))];
        const Dtype out = rng.Below(2) == 0 ? in : other;
        for (bool transposed : {false, true}) {
          CAPTURE(M);
          CAPTURE(K);
          CAPTURE(N);
          CAPTURE(transposed);
          CAPTURE(threads);
          CAPTURE(DtypeName(in));
          CAPTURE(DtypeName(weight));
          CAPTURE(DtypeName(out));
          fn(bench, M, K, N, in, weight, out, transposed);
        }
      }
    }
  }
}

TEST_CASE("matmul forward equals double sums, with and without bias and residual") {
  ZEROPLAN_TEST_RNG(rng);
  ForEachCase(rng, [&](Bench& bench, int64_t M, int64_t K, int64_t N, Dtype in, Dtype weight,
                       Dtype out, bool transposed) {
    Tensor a = Tensor::Random(rng, in, M * K), w = Tensor::Random(rng, weight, K * N);
    Tensor bias = Tensor::Random(rng, weight, N), residual = Tensor::Random(rng, in, M * N);
    Tensor y(out, M * N);
    Product want = Multiply(M, N, K, a, false, w, transposed);
    bench.Run(KernelId::kMatmulForward, {M, K, N}, {&a, &w, nullptr, nullptr, &y},
              transposed ? kTransposed : 0);
    Check(y, want, K, "plain");
    Add(want, bias, N);
    bench.Run(KernelId::kMatmulForward, {M, K, N}, {&a, &w, &bias, nullptr, &y},
              transposed ? kTransposed : 0);
    Check(y, want, K, "bias");
    Add(want, residual, M * N);
    bench.Run(KernelId::kMatmulForward, {M, K, N}, {&a, &w, &bias, &residual, &y},
              transposed ? kTransposed : 0);
    Check(y, want, K, "bias and residual");
  });
}

TEST_CASE("matmul backward: data") {
  ZEROPLAN_TEST_RNG(rng);
  ForEachCase(rng, [&](Bench& bench, int64_t M, int64_t K, int64_t N, Dtype in, Dtype weight,
                       Dtype out, bool transposed) {
    Tensor dy = Tensor::Random(rng, in, M * N), w = Tensor::Random(rng, weight, K * N);
    Tensor dx = Tensor::Random(rng, out, M * K);
    Product want = Multiply(M, K, N, dy, false, w, !transposed);
    Product sum = want;
    Add(sum, dx, M * K);
    const int flags = transposed ? kTransposed : 0;
    bench.Run(KernelId::kMatmulBackwardData, {M, K, N}, {&dy, &w, &dx}, flags | kAccumulate);
    Check(dx, sum, N, "added");
    bench.Run(KernelId::kMatmulBackwardData, {M, K, N}, {&dy, &w, &dx}, flags);
    Check(dx, want, N, "written");
  });
}

// GELU's own arithmetic is off by a few roundings of numbers up to about |x| + 1.
constexpr double kGeluSlack = 20 * 0x1p-24;

TEST_CASE("matmul with GELU: the sums before and after") {
  ZEROPLAN_TEST_RNG(rng);
  ForEachCase(rng, [&](Bench& bench, int64_t M, int64_t K, int64_t N, Dtype in, Dtype weight,
                       Dtype out, bool transposed) {
    if (kOnGpu) out = in;  // one dtype for all, as programs have it
    const double std = 1 / std::sqrt(static_cast<double>(K));
    Tensor a = Tensor::Random(rng, in, M * K), w = Tensor::Random(rng, weight, K * N, std);
    Tensor bias = Tensor::Random(rng, weight, N);
    Tensor pre(out, M * N), y(out, M * N);
    Product want = Multiply(M, N, K, a, false, w, transposed);
    Add(want, bias, N);
    bench.Run(KernelId::kMatmulGeluForward, {M, K, N}, {&a, &w, &bias, &pre, &y},
              transposed ? kTransposed : 0);
    Check(pre, want, K, "pre");
    for (size_t i = 0; i < want.value.size(); ++i) {
      // |gelu'| < 1.13. Were the rounded sum the input, a 16-bit y would be off by far more.
      const double slack = 1.13 * static_cast<double>(K + 2) * 0x1p-24 * want.magnitude[i] +
                           kGeluSlack * (1 + std::abs(want.value[i]));
      const double got = y[static_cast<int64_t>(i)];
      if (Close(got, Gelu(want.value[i]), out, slack)) continue;
      FAIL_CHECK("y[" << i << "]: got " << got << ", want " << Gelu(want.value[i]));
      break;
    }
  });
}

TEST_CASE("matmul backward through GELU: data") {
  ZEROPLAN_TEST_RNG(rng);
  ForEachCase(rng, [&](Bench& bench, int64_t M, int64_t K, int64_t N, Dtype in, Dtype weight,
                       Dtype out, bool transposed) {
    if (kOnGpu) out = in;  // as above
    Tensor dy = Tensor::Random(rng, in, M * N), w = Tensor::Random(rng, weight, K * N);
    Tensor pre = Tensor::Random(rng, out, M * K, 2.0), dx(out, M * K);
    Product want = Multiply(M, K, N, dy, false, w, !transposed);
    bench.Run(KernelId::kMatmulGeluBackward, {M, K, N}, {&dy, &w, &pre, &dx},
              transposed ? kTransposed : 0);
    for (size_t i = 0; i < want.value.size(); ++i) {
      const double slope = GeluSlope(pre[static_cast<int64_t>(i)]);
      double slack =
          (1.13 * static_cast<double>(N + 2) * 0x1p-24 + 4 * kGeluSlack) * want.magnitude[i];
      // A library's epilogue may work on the rounded sum, and has a fast tanh: on H100s cuBLASLt's
      // slope was off by up to 1.6e-5, near x = -3.5, where the slope itself is 0.002.
      constexpr double kFastSlope = 0x1p-15;
      if (kOnGpu) {
        slack += RoundOff(out) * std::abs(want.value[i] * slope);
        if (out != Dtype::kF32) slack += kFastSlope * std::abs(want.value[i]);
      }
      const double got = dx[static_cast<int64_t>(i)];
      if (Close(got, want.value[i] * slope, out, slack)) continue;
      FAIL_CHECK("dx[" << i << "]: got " << got << ", want " << want.value[i] * slope);
      break;
    }
  });
}

TEST_CASE("matmul backward: weight and bias") {
  ZEROPLAN_TEST_RNG(rng);
  ForEachCase(rng, [&](Bench& bench, int64_t M, int64_t K, int64_t N, Dtype in, Dtype other,
                       Dtype out, bool transposed) {
    Tensor a = Tensor::Random(rng, in, M * K), dy = Tensor::Random(rng, other, M * N);
    Tensor dw = Tensor::Random(rng, out, K * N), db = Tensor::Random(rng, out, N);
    Tensor ones(Dtype::kF32, M);
    for (int64_t m = 0; m < M; ++m) ones.Set(m, 1);
    Product want =
        transposed ? Multiply(N, K, M, dy, true, a, false) : Multiply(K, N, M, a, true, dy, false);
    Product want_db = Multiply(1, N, M, ones, false, dy, false);
    Product sum = want, sum_db = want_db;
    Add(sum, dw, K * N);
    Add(sum_db, db, N);
    const int flags = transposed ? kTransposed : 0;
    bench.Run(KernelId::kMatmulBackwardWeight, {M, K, N}, {&a, &dy, &dw, &db}, flags | kAccumulate);
    Check(dw, sum, M, "dw added");
    Check(db, sum_db, M, "db added");
    bench.Run(KernelId::kMatmulBackwardWeight, {M, K, N}, {&a, &dy, &dw, &db}, flags);
    Check(dw, want, M, "dw written");
    Check(db, want_db, M, "db written");
    Tensor again(out, K * N), db_again(out, N);
    bench.Run(KernelId::kMatmulBackwardWeight, {M, K, N}, {&a, &dy, &again, &db_again}, flags);
    CHECK(again == dw);
    CHECK(db_again == db);
    bench.Run(KernelId::kMatmulBackwardWeight, {M, K, N}, {&a, &dy, &again, nullptr}, flags);
    // A GPU's library may take another algorithm where it sums dy on the way.
    if (kOnGpu)
      Check(again, want, M, "dw alone");
    else
      CHECK(again == dw);
  });
}

}  // namespace
}  // namespace zeroplan::kernel_test
