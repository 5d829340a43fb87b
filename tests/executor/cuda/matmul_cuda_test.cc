// What is special about the matrix products of a GPU: fused epilogues and what stands in for them,
// fp32 gradients of 16-bit products, large shapes, the file of tuned algorithms.
// Legend: M rows, K inputs, N outputs.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/cuda_launch.h"
#include "executor/kernels/cuda/gemm/gemm_plans.h"
#include "tests/executor/cuda/gpu_runner.h"
#include "tests/executor/kernels/gelu_reference.h"
#include "tests/executor/kernels/kernel_harness.h"
#include "tests/temp_dir.h"

namespace zeroplan::kernel_test {
namespace {

namespace fs = std::filesystem;

// Element (i, j) of op(a) op(b), with the sum of the terms' absolute values.
struct Entry {
  double value = 0, magnitude = 0;
};
template <typename Term>
Entry SumTerms(int64_t count, Term&& term) {
  Entry entry;
  for (int64_t x = 0; x < count; ++x) {
    const double t = term(x);
    entry.value += t;
    entry.magnitude += std::abs(t);
  }
  return entry;
}

// fp32 sums of `terms` terms in any order.
double SumSlack(int64_t terms, double magnitude) {
  return static_cast<double>(terms + 2) * 0x1p-24 * magnitude;
}

// The hardware's tanh, which the library's epilogues may use, is off by up to 2^-10.97 (PTX manual,
// tanh.approx.f32); |x| / 2 times that, and the slope's 1 - t^2 twice that.
double TanhSlack(Dtype dtype, double x) {
  return dtype == Dtype::kF32 ? 20 * 0x1p-24 * (1 + std::abs(x)) : 0x1p-10 * (1 + std::abs(x));
}

TEST_CASE("gpu matmul with GELU: aligned shapes, which fuse, and odd ones, which cannot") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (Dtype dtype : FloatDtypes()) {
    // The last: several panels of sums in the workspace (24 MiB hold 1,000 rows of 6,291).
    for (const auto& [M, K, N] : {std::array<int64_t, 3>{64, 32, 128},
                                  {37, 24, 72},
                                  {33, 17, 31},
                                  {1, 8, 8},
                                  {1200, 9, 6291}}) {
      for (int flags : {0, static_cast<int>(kTransposed)}) {
        const bool transposed = flags != 0;
        CAPTURE(DtypeName(dtype));
        CAPTURE(M);
        CAPTURE(K);
        CAPTURE(N);
        CAPTURE(transposed);
        const double std = 1 / std::sqrt(static_cast<double>(K));
        Tensor a = Tensor::Random(rng, dtype, M * K), w = Tensor::Random(rng, dtype, K * N, std);
        Tensor bias = Tensor::Random(rng, dtype, N), pre(dtype, M * N), y(dtype, M * N);
        bench.Run(KernelId::kMatmulGeluForward, {M, K, N}, {&a, &w, &bias, &pre, &y}, flags);
        Tensor dy = Tensor::Random(rng, dtype, M * N, 0.1);
        Tensor x = Tensor::Random(rng, dtype, M * K, 2.0), dx(dtype, M * K);
        bench.Run(KernelId::kMatmulGeluBackward, {M, K, N}, {&dy, &w, &x, &dx}, flags);
        const auto weight = [&, K = K, N = N](int64_t k, int64_t n) {
          return w[transposed ? n * K + k : k * N + n];
        };
        for (int sample = 0; sample < 400; ++sample) {
          const int64_t m = rng.Below(M), n = rng.Below(N), k = rng.Below(K);
          const Entry sum =
              SumTerms(K, [&, K = K](int64_t i) { return a[m * K + i] * weight(i, n); });
          const double want = sum.value + bias[n];
          const double slack = SumSlack(K + 1, sum.magnitude + std::abs(bias[n]));
          INFO("y[" << m << "," << n << "]: " << y[m * N + n] << ", want " << Gelu(want));
          INFO("pre: " << pre[m * N + n] << ", want " << want);
          REQUIRE(Close(pre[m * N + n], want, dtype, slack));
          REQUIRE(Close(y[m * N + n], Gelu(want), dtype, 1.13 * slack + TanhSlack(dtype, want)));

          const Entry back =
              SumTerms(N, [&, N = N](int64_t i) { return dy[m * N + i] * weight(k, i); });
          const double at = x[m * K + k], want_dx = back.value * GeluSlope(at);
          INFO("dx[" << m << "," << k << "]: " << dx[m * K + k] << ", want " << want_dx);
          REQUIRE(Close(dx[m * K + k], want_dx, dtype,
                        1.13 * SumSlack(N, back.magnitude) +
                            std::abs(back.value) * 4 * TanhSlack(dtype, at)));
        }
      }
    }
  }
}

TEST_CASE("gpu matmul backward: fp32 gradients of 16-bit products, added and written") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  for (Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    for (const auto& [M, K, N] :
         {std::array<int64_t, 3>{128, 64, 96}, {77, 40, 56}, {50, 13, 29}, {700, 8, 1100}}) {
      for (int flags : {0, int{kAccumulate}, int{kTransposed}, kTransposed | kAccumulate}) {
        CAPTURE(DtypeName(dtype));
        CAPTURE(M);
        CAPTURE(K);
        CAPTURE(N);
        CAPTURE(flags);
        Tensor a = Tensor::Random(rng, dtype, M * K), dy = Tensor::Random(rng, dtype, M * N);
        Tensor dw = Tensor::Random(rng, Dtype::kF32, K * N);
        Tensor db = Tensor::Random(rng, Dtype::kF32, N);
        const Tensor dw_before = dw, db_before = db;
        bench.Run(KernelId::kMatmulBackwardWeight, {M, K, N}, {&a, &dy, &dw, &db}, flags);
        const double kept = (flags & kAccumulate) != 0 ? 1 : 0;
        for (int sample = 0; sample < 300; ++sample) {
          const int64_t k = rng.Below(K), n = rng.Below(N);
          const int64_t at = (flags & kTransposed) != 0 ? n * K + k : k * N + n;
          const Entry w =
              SumTerms(M, [&, K = K, N = N](int64_t m) { return a[m * K + k] * dy[m * N + n]; });
          const double want = w.value + kept * dw_before[at];
          INFO("dw[" << k << "," << n << "]: " << dw[at] << ", want " << want);
          REQUIRE(
              Close(dw[at], want, Dtype::kF32, SumSlack(M, w.magnitude + std::abs(dw_before[at]))));
          const Entry b = SumTerms(M, [&, N = N](int64_t m) { return dy[m * N + n]; });
          const double want_db = b.value + kept * db_before[n];
          INFO("db[" << n << "]: " << db[n] << ", want " << want_db);
          REQUIRE(Close(db[n], want_db, Dtype::kF32,
                        SumSlack(M, b.magnitude + std::abs(db_before[n]))));
        }
      }
    }
  }
}

TEST_CASE("gpu matmul: a product of GPT-2 1.6B's size, sampled") {
  ZEROPLAN_TEST_RNG(rng);
  Bench bench(1);
  constexpr int64_t M = 16384, K = 1600, N = 6400;
  // Values from a short table: drawing 26 million normals would take longer than the test.
  std::vector<double> table(4099);
  for (double& v : table) v = rng.Normal();
  const auto make = [&](int64_t n, int64_t step) {
    Tensor t(Dtype::kBF16, n);
    for (int64_t i = 0; i < n; ++i) {
      t.Set(i, table[static_cast<size_t>((i * step + i / 4099) % 4099)]);
    }
    return t;
  };
  Tensor a = make(M * K, 1), w = make(K * N, 3), bias = make(N, 7), y(Dtype::kBF16, M * N);
  bench.Run(KernelId::kMatmulForward, {M, K, N}, {&a, &w, &bias, nullptr, &y});
  Tensor dw(Dtype::kF32, K * N), db(Dtype::kF32, N);
  bench.Run(KernelId::kMatmulBackwardWeight, {M, K, N}, {&a, &y, &dw, &db});
  for (int sample = 0; sample < 500; ++sample) {
    const int64_t m = rng.Below(M), k = rng.Below(K), n = rng.Below(N);
    const Entry sum = SumTerms(K, [&](int64_t i) { return a[m * K + i] * w[i * N + n]; });
    const double want = sum.value + bias[n];
    INFO("y[" << m << "," << n << "]: " << y[m * N + n] << ", want " << want);
    REQUIRE(Close(y[m * N + n], want, Dtype::kBF16, SumSlack(K, sum.magnitude)));
    const Entry weight = SumTerms(M, [&](int64_t i) { return a[i * K + k] * y[i * N + n]; });
    INFO("dw[" << k << "," << n << "]: " << dw[k * N + n] << ", want " << weight.value);
    REQUIRE(Close(dw[k * N + n], weight.value, Dtype::kF32, SumSlack(M, weight.magnitude)));
    const Entry column = SumTerms(M, [&](int64_t i) { return y[i * N + n]; });
    INFO("db[" << n << "]: " << db[n] << ", want " << column.value);
    REQUIRE(Close(db[n], column.value, Dtype::kF32, SumSlack(M, column.magnitude)));
  }
}

// ---- the file of tuned algorithms --------------------------------------------------------------

// Prepares and runs a product with plans of its own; returns how many products were tuned and what
// came out.
struct Outcome {
  int tuned;
  Tensor y;
  std::string path;
  std::vector<GemmPlans::Choice> choices;
};
Outcome RunWithPlans(const std::string& folder, Tensor a, Tensor w, const KernelDims& dims,
                     bool deterministic = false) {
  GemmPlans plans(0, folder, deterministic);
  CudaLaunch& launch = TestLaunch();
  GemmPlans* const usual = launch.gemm;
  launch.gemm = &plans;
  Tensor y(a.dtype(), dims[0] * dims[2]);
  Bench bench(1);
  bench.Run(KernelId::kMatmulForward, dims, {&a, &w, nullptr, nullptr, &y});
  launch.gemm = usual;
  return {plans.tuned_in_this_run(), y, plans.cache_path(), plans.choices()};
}

TEST_CASE("gpu matmul: tuned algorithms are kept, and a damaged file is tuned anew") {
  ZEROPLAN_TEST_RNG(rng);
  const TempDir temporary;
  const std::string folder = temporary.path() + "/tuned";
  const KernelDims dims = {256, 128, 512};
  const Tensor a = Tensor::Random(rng, Dtype::kBF16, 256 * 128);
  const Tensor w = Tensor::Random(rng, Dtype::kBF16, 128 * 512);
  const Outcome first = RunWithPlans(folder, a, w, dims);
  CHECK(first.tuned == 1);
  REQUIRE(first.choices.size() == 1);
  CHECK(first.choices[0].milliseconds > 0);
  REQUIRE(fs::exists(first.path));

  const Outcome second = RunWithPlans(folder, a, w, dims);
  CHECK(second.tuned == 0);
  CHECK(second.y == first.y);
  REQUIRE(second.choices.size() == 1);
  CHECK(second.choices[0].milliseconds == first.choices[0].milliseconds);

  std::ofstream(first.path) << "{\"format\": 1, ";
  CHECK(RunWithPlans(folder, a, w, dims).tuned == 1);
  CHECK(RunWithPlans(folder, a, w, dims).tuned == 0);  // the file is whole again
  CHECK(RunWithPlans("", a, w, dims).tuned == 1);
}

TEST_CASE("gpu matmul: deterministic plans neither time nor take what others have timed") {
  ZEROPLAN_TEST_RNG(rng);
  const TempDir temporary;
  const std::string folder = temporary.path() + "/tuned";
  const KernelDims dims = {256, 128, 512};
  const Tensor a = Tensor::Random(rng, Dtype::kBF16, 256 * 128);
  const Tensor w = Tensor::Random(rng, Dtype::kBF16, 128 * 512);
  const Outcome alone = RunWithPlans(folder, a, w, dims, true);
  CHECK(alone.tuned == 0);
  CHECK(alone.path.empty());
  CHECK_FALSE(fs::exists(folder));
  const Outcome tuned = RunWithPlans(folder, a, w, dims);
  REQUIRE(fs::exists(tuned.path));
  const auto written = fs::last_write_time(tuned.path);
  const Outcome beside = RunWithPlans(folder, a, w, dims, true);
  CHECK(beside.tuned == 0);
  CHECK(beside.y == alone.y);
  CHECK(fs::last_write_time(tuned.path) == written);
}

TEST_CASE("gpu matmul: an algorithm of the wrong size is not taken from the file") {
  ZEROPLAN_TEST_RNG(rng);
  const TempDir temporary;
  const std::string folder = temporary.path() + "/tuned";
  const KernelDims dims = {64, 64, 64};
  const Tensor a = Tensor::Random(rng, Dtype::kBF16, 64 * 64);
  const Tensor w = Tensor::Random(rng, Dtype::kBF16, 64 * 64);
  const Outcome first = RunWithPlans(folder, a, w, dims);
  std::ifstream file(first.path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t at = text.find("\"algorithm\": \"");
  REQUIRE(at != std::string::npos);
  text.erase(at + 14, 2);
  std::ofstream(first.path) << text;
  const Outcome again = RunWithPlans(folder, a, w, dims);
  CHECK(again.tuned == 1);
}

TEST_CASE("gpu matmul cache file: merges, refuses other GPUs and versions") {  // needs no GPU
  const TempDir temporary;
  const std::string folder = temporary.path() + "/tuned";
  const std::string path = GemmCachePath(folder, "A GPU/1", 130100);
  CHECK(path == folder + "/gemm-A-GPU-1-cublaslt130100.json");
  WriteGemmCache(path, "A GPU/1", 130100, {.products = {{"p", {"00ff", 1.5}}}});
  WriteGemmCache(path, "A GPU/1", 130100,
                 {.products = {{"q", {"0102", 2.5}}}, .fusions = {{"f", {true, 1, 2}}}});
  const GemmCacheContent both = ReadGemmCache(path, "A GPU/1", 130100);
  REQUIRE(both.products.size() == 2);
  CHECK(both.products.at("p").algorithm_hex == "00ff");
  CHECK(both.products.at("q").milliseconds == 2.5);
  CHECK(both.fusions.at("f").fused);
  CHECK(ReadGemmCache(path, "A GPU/1", 130101).products.empty());
  CHECK(ReadGemmCache(path, "Another", 130100).products.empty());
  CHECK(ReadGemmCache(path + ".none", "A GPU/1", 130100).products.empty());

  unsigned char bytes[2] = {};
  CHECK(HexToBytes("0aFf", bytes, 2) == false);
  CHECK(HexToBytes("0aff0", bytes, 2) == false);
  CHECK(HexToBytes("0aff", bytes, 2));
  CHECK(bytes[0] == 10);
  CHECK(bytes[1] == 255);
  CHECK(BytesToHex(bytes, 2) == "0aff");
}

}  // namespace
}  // namespace zeroplan::kernel_test
