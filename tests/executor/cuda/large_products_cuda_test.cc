// Matrix products past 2^31 elements, the library's and our own. Legend: kernel_rows.inc's. Rows of
// tensors are read once the launch is over: choosing an algorithm fills inputs anew.
#include "core/settings/setup_facts.h"
#include "tests/executor/cuda/large_tensor.h"
#include "tests/executor/kernels/gelu_reference.h"

namespace zeroplan::kernel_test::large_products {
namespace {

constexpr int64_t M = kLargeRows, C = kLargeColumns, n = kLargeElements;
constexpr double k16 = 2.0 * n;  // bytes of one

// Row i of R, as it lies or as a column.
struct Matrix {
  const LargeTensor& tensor;
  int64_t rows, columns;
  Doubles Row(int64_t i) const { return tensor.Read(i * columns, columns); }
  // kSome columns of all rows, row by row.
  std::vector<float> Columns(int64_t first) const {
    return tensor.Floats(first, rows, columns, kSome);
  }
};

// Sums over the rows of two matrices of their products: [kSome][kSome].
Doubles RowSums(const Matrix& a, int64_t a_first, const Matrix& b, int64_t b_first) {
  const std::vector<float> x = a.Columns(a_first), y = b.Columns(b_first);
  Doubles sums(kSome * kSome);
  for (size_t m = 0; m < static_cast<size_t>(a.rows); ++m) {
    for (size_t i = 0; i < kSome; ++i) {
      for (size_t j = 0; j < kSome; ++j) {
        sums[i * kSome + j] +=
            static_cast<double>(x[m * kSome + i]) * static_cast<double>(y[m * kSome + j]);
      }
    }
  }
  return sums;
}
// Those are some 40. A sum of as many products in fp32, whose tensor cores cut off what they drop,
// loses up to a few tenths; the rows past 2^31 elements make up 7.
constexpr double kLongSlack = 0.5;
// Sums of up to C products below 1/4 in fp32, some 8.
constexpr double kSlack = 2e-3;

// want[j] = sum over k of row[k] * w(k, j) for kSome j from `first` on.
template <typename Weight>
Doubles RowTimes(const Doubles& row, int64_t first, const Weight& w) {
  return Some([&](size_t j) {
    double sum = 0;
    for (size_t k = 0; k < row.size(); ++k) sum += row[k] * w(k, static_cast<size_t>(first) + j);
    return sum;
  });
}

// Of [K,N], or, `transposed`, of [N,K].
struct Weights {
  Doubles values;
  size_t K, N;
  bool transposed;
  Weights(const LargeTensor& w, int64_t k, int64_t columns, bool lies_transposed)
      : values(w.Read(0, k * columns)),
        K(static_cast<size_t>(k)),
        N(static_cast<size_t>(columns)),
        transposed(lies_transposed) {}
  double operator()(size_t k, size_t j) const { return values[transposed ? j * K + k : k * N + j]; }
};

void CheckProducts(int64_t K, int64_t N, bool transposed) {
  CAPTURE(K);
  CAPTURE(N);
  CAPTURE(transposed);
  LargeBench bench;
  const int flags = transposed ? kTransposed : 0;
  LargeTensor a(Dtype::kBF16, M * K), w(Dtype::kBF16, K * N), y(Dtype::kBF16, M * N);
  LargeTensor bias(Dtype::kBF16, N), dw(Dtype::kF32, K * N), db(Dtype::kF32, N);
  a.Uniform(1), w.Uniform(2), bias.Uniform(3);
  bench.Run(KernelId::kMatmulForward, {M, K, N}, {&a, &w, &bias, nullptr, &y}, flags);
  for (const int64_t m : SomeRows(M, C)) {
    const Weights weights(w, K, N, transposed);
    for (const int64_t j : {int64_t{0}, N - kSome}) {
      Doubles want = RowTimes(a.Read(m * K, K), j, weights);
      const Doubles start = bias.Read(j, kSome);
      for (size_t e = 0; e < want.size(); ++e) want[e] += start[e];
      CheckSome(y, m * N + j, want, kSlack, "y");
    }
  }

  LargeTensor &dy = y.Uniform(4), &dx = a;
  bench.Run(KernelId::kMatmulBackwardData, {M, K, N}, {&dy, &w, &dx}, flags);
  for (const int64_t m : SomeRows(M, C)) {
    const Weights weights(w, K, N, transposed);
    for (const int64_t k : {int64_t{0}, K - kSome}) {
      CheckSome(dx, m * K + k,
                RowTimes(dy.Read(m * N, N), k, [&](size_t j, size_t c) { return weights(c, j); }),
                kSlack, "dx");
    }
  }

  a.Uniform(5);
  bench.Run(KernelId::kMatmulBackwardWeight, {M, K, N}, {&a, &dy, &dw, &db}, flags);
  for (const int64_t k : {int64_t{0}, K - kSome}) {
    for (const int64_t j : {int64_t{0}, N - kSome}) {
      const Doubles sums = RowSums({a, M, K}, k, {dy, M, N}, j);
      for (int64_t i = 0; i < kSome * kSome; ++i) {
        const int64_t row = k + i / kSome, column = j + i % kSome;
        CheckSome(dw, transposed ? column * K + row : row * N + column,
                  {sums[static_cast<size_t>(i)]}, kLongSlack, "dw");
      }
    }
  }
  for (const int64_t j : {int64_t{0}, N - kSome}) {
    const std::vector<float> columns = dy.Floats(j, M, N, kSome);
    Doubles sums(kSome);
    for (size_t i = 0; i < columns.size(); ++i) sums[i % kSome] += static_cast<double>(columns[i]);
    CheckSome(db, j, sums, kLongSlack, "db");
  }
}

TEST_CASE("gpu past 2^31 elements: matrix products") {
  if (!HasRoom(1.1 * k16)) return;
  for (const bool transposed : {false, true}) {
    CheckProducts(C, 64, transposed);
    CheckProducts(64, C, transposed);
  }
}

// The library's GELU takes the GPU's tanh, exact to 2^-11.
TEST_CASE("gpu past 2^31 elements: matrix products with GELU") {
  if (!HasRoom(2.1 * k16)) return;
  constexpr double kGeluSlack = 5e-3;
  constexpr int64_t K = 64;
  LargeBench bench;
  LargeTensor a(Dtype::kBF16, M * K), w(Dtype::kBF16, K * C), bias(Dtype::kBF16, C);
  LargeTensor pre(Dtype::kBF16, n), y(Dtype::kBF16, n);
  a.Uniform(6), w.Uniform(7), bias.Uniform(8);
  bench.Run(KernelId::kMatmulGeluForward, {M, K, C}, {&a, &w, &bias, &pre, &y});
  for (const int64_t m : SomeRows(M, C)) {
    const Weights weights(w, K, C, false);
    for (const int64_t j : {int64_t{0}, C - kSome}) {
      Doubles want = RowTimes(a.Read(m * K, K), j, weights);
      const Doubles start = bias.Read(j, kSome);
      for (size_t e = 0; e < want.size(); ++e) want[e] += start[e];
      CheckSome(pre, m * C + j, want, kSlack, "pre");
      CheckSome(y, m * C + j, Some([&](size_t e) { return Gelu(want[e]); }), kGeluSlack, "y");
    }
  }
  // dx has C columns: K of the row.
  LargeTensor &dy = a.Uniform(9), &dx = y;
  pre.Uniform(10);
  bench.Run(KernelId::kMatmulGeluBackward, {M, C, K}, {&dy, &w, &pre, &dx});
  for (const int64_t m : SomeRows(M, C)) {
    const Weights weights(w, C, K, false);
    for (const int64_t c : {int64_t{0}, C - kSome}) {
      Doubles want =
          RowTimes(dy.Read(m * K, K), c, [&](size_t j, size_t k) { return weights(k, j); });
      const Doubles inputs = pre.Read(m * C + c, kSome);
      for (size_t e = 0; e < want.size(); ++e) want[e] *= GeluSlope(inputs[e]);
      CheckSome(dx, m * C + c, want, kGeluSlack, "dx");
    }
  }
}

TEST_CASE("gpu past 2^31 elements: products of eight bits") {
  if (!HasRoom(1.6 * k16)) return;
  int major = 0, minor = 0;
  CheckGpu(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device");
  CheckGpu(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "device");
  if (!Fp8GpuLacks({}, 10 * major + minor).empty()) return;
  constexpr int64_t kFew = 128;
  LargeBench bench;
  for (const auto& [K, N] : {std::pair{C, kFew}, std::pair{kFew, C}}) {
    CAPTURE(K);
    LargeTensor a(Dtype::kE4M3, M * K), b(Dtype::kE4M3, N * K), y(Dtype::kBF16, M * N);
    LargeTensor scale_a(Dtype::kF32, 1), scale_b(Dtype::kF32, 1);
    a.Uniform(11), b.Uniform(12), scale_a.Write(0, {2}), scale_b.Write(0, {0.5});
    bench.Run(KernelId::kFp8Matmul, {M, K, N, 0, 0, 0},
              {&a, &scale_a, &b, &scale_b, nullptr, nullptr, &y});
    const double scale = scale_a.Get(0) * scale_b.Get(0);
    const Weights weights(b, K, N, true);
    for (const int64_t m : SomeRows(M, C)) {
      for (const int64_t j : {int64_t{0}, N - kSome}) {
        Doubles want = RowTimes(a.Read(m * K, K), j, weights);
        for (double& v : want) v *= scale;
        // The sums of eight-bit tensor cores have some 14 bits: a hundredth of what sums come to.
        CheckSome(y, m * N + j, want,
                  0.01 * std::abs(scale) * std::sqrt(static_cast<double>(K)) / 12, "y");
      }
    }
  }
}

TEST_CASE("gpu past 2^31 elements: products of adapters") {
  if (!HasRoom(2.1 * k16)) return;
  constexpr int64_t R = 16;
  constexpr double kScale = 0.5;
  const KernelScalars scale{0.5f};
  LargeBench bench;
  LargeTensor x(Dtype::kBF16, n), thin(Dtype::kBF16, M * R), a(Dtype::kBF16, R * C);
  LargeTensor sums(Dtype::kF32, R * C);
  const auto scaled = [&](Doubles values) {
    for (double& v : values) v *= kScale;
    return values;
  };
  // Of x and the thin matrix: sums over rows that lie as [R, C] or as [C, R].
  const auto check_sums = [&](bool across, const char* what) {
    for (const int64_t c : {int64_t{0}, C - kSome}) {
      const Doubles want = RowSums({x, M, C}, c, {thin, M, R}, R - kSome);
      for (int64_t i = 0; i < kSome * kSome; ++i) {
        const int64_t column = c + i / kSome, rank = R - kSome + i % kSome;
        CheckSome(sums, across ? rank * C + column : column * R + rank,
                  {want[static_cast<size_t>(i)]}, kLongSlack, what);
      }
    }
  };
  x.Uniform(13), a.Uniform(14);
  bench.Run(KernelId::kLoraDown, {M, C, R}, {&x, &a, &thin}, 0, scale);
  for (const int64_t m : SomeRows(M, C)) {
    CheckSome(thin, m * R, scaled(RowTimes(x.Read(m * C, C), 0, Weights(a, C, R, true))), kSlack,
              "xa");
  }

  // The thin product that reads x, and the library's that writes dx.
  thin.Uniform(15);
  {
    LargeTensor wide(Dtype::kBF16, n);
    bench.Run(KernelId::kLoraDownBackward, {M, C, R}, {&x, &thin, &a, &wide, &sums});
    check_sums(true, "da");
    for (const int64_t m : SomeRows(M, C)) {
      const Doubles row = thin.Read(m * R, R);
      CheckSome(wide, m * C + C - kSome, RowTimes(row, C - kSome, Weights(a, R, C, false)), kSlack,
                "dx");
    }
  }

  // One linear that has all columns.
  const KernelDims up = {M, R, C, C, C, 1};
  LargeTensor &b = a, &y = x;
  b.Uniform(16), thin.Uniform(17);
  bench.Run(KernelId::kLoraUp, up, {&thin, &b, nullptr, &y});
  for (const int64_t m : SomeRows(M, C)) {
    CheckSome(y, m * C + C - kSome,
              RowTimes(thin.Read(m * R, R), C - kSome, Weights(b, R, C, true)), kSlack, "y");
  }
  LargeTensor& dy = x.Uniform(18);
  LargeTensor dthin(Dtype::kBF16, M * R);
  thin.Uniform(19);
  bench.Run(KernelId::kLoraUpBackward, up, {&dy, &thin, &b, &dthin, &sums}, 0, scale);
  check_sums(false, "db");
  for (const int64_t m : SomeRows(M, C)) {
    CheckSome(dthin, m * R, scaled(RowTimes(dy.Read(m * C, C), 0, Weights(b, C, R, false))), kSlack,
              "dxa");
  }
}

TEST_CASE("gpu past 2^31 elements: sums over rows") {
  if (!HasRoom(k16)) return;
  LargeBench bench;
  LargeTensor x(Dtype::kBF16, n), sums(Dtype::kF32, C);
  x.Uniform(20);
  bench.Run(KernelId::kBiasBackward, {M, C}, {&x, &sums});
  for (const int64_t c : {int64_t{0}, C - kSome}) {
    const std::vector<float> columns = x.Floats(c, M, C, kSome);
    Doubles want(kSome);
    for (size_t i = 0; i < columns.size(); ++i) want[i % kSome] += static_cast<double>(columns[i]);
    CheckSome(sums, c, want, 0.05, "sums");  // in fp32, up to a few hundreds: some 10^-3
  }
}

}  // namespace
}  // namespace zeroplan::kernel_test::large_products
