// Seconds of the matmuls of experts: by a profile's rows, and without any.
#include "cost_models/grouped_cost.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "hwprofiles/loader.h"
#include "tests/cost_models/plain_profile.h"

namespace zeroplan {
namespace {

constexpr std::array kKinds = {GemmKind::kForward, GemmKind::kData, GemmKind::kWeight};
constexpr std::array kCosts = {CostKind::kGroupedForward, CostKind::kGroupedData,
                               CostKind::kGroupedWeight};

double SecondsOf(const GpuProfile& gpu, CostKind cost, const KernelDims& dims) {
  const GemmCost gemm(gpu);
  return GroupedCost(gpu, gemm).Seconds(gemm, cost, Dtype::kBF16, dims);
}

// `shares`: of the plain profile's peak, even and uneven, of a forward matmul.
GpuProfile WithRows(double even, double uneven) {
  GpuProfile gpu = PlainProfile().gpu;
  const double peak = gpu.dense_peaks[Dtype::kBF16].value;
  gpu.grouped.emplace();
  for (const auto& [fullest, share] : {std::pair{100, even}, std::pair{500, uneven}}) {
    gpu.grouped->rows.push_back({.kind = GemmKind::kForward,
                                 .dtype = Dtype::kBF16,
                                 .rows = 32768,
                                 .k = 2048,
                                 .n = 1536,
                                 .experts = 64,
                                 .fullest = fullest,
                                 .flops_per_second = share * peak});
  }
  return gpu;
}

TEST_CASE("grouped cost: a profile's even rows are met, its uneven ones say what routing costs") {
  const GpuProfile gpu = WithRows(0.5, 0.4);
  const KernelDims dims = {32768, 2048, 1536, 64};
  const double flops = 2.0 * 32768 * 2048 * 1536;
  CHECK(SecondsOf(gpu, CostKind::kGroupedForward, dims) ==
        doctest::Approx(flops / 50e12).epsilon(1e-9));
  CHECK(GroupedCost::WorstUneven(gpu).share == doctest::Approx(0.25));
  // Kinds without rows keep the architecture's factor.
  CHECK(SecondsOf(gpu, CostKind::kGroupedData, dims) ==
        SecondsOf(PlainProfile().gpu, CostKind::kGroupedData, dims));
}

TEST_CASE("grouped cost: more experts take longer, kernels before Hopper thrice as long") {
  GpuProfile hopper = PlainProfile().gpu, ampere = hopper;
  ampere.architecture = "ampere";
  for (const CostKind cost : kCosts) {
    const double few = SecondsOf(hopper, cost, {32768, 2048, 1536, 8}),
                 many = SecondsOf(hopper, cost, {32768, 2048, 1536, 256});
    CHECK(many > few);
    CHECK(SecondsOf(ampere, cost, {32768, 2048, 1536, 8}) > 2 * few);
  }
}

TEST_CASE("grouped cost: an H200's own rows, each within a fifth") {
  const GpuProfile gpu = LoadProfile("h200-141gb-sxm").gpu;
  REQUIRE(gpu.grouped.has_value());
  int even = 0;
  for (const GroupedRate& row : gpu.grouped->rows) {
    if (row.fullest != 100) continue;
    ++even;
    const auto kind =
        static_cast<size_t>(std::find(kKinds.begin(), kKinds.end(), row.kind) - kKinds.begin());
    const KernelDims dims = {row.rows, row.k, row.n, row.experts};
    const double flops = 2.0 * static_cast<double>(row.rows) * static_cast<double>(row.k) *
                         static_cast<double>(row.n);
    const double ratio = SecondsOf(gpu, kCosts[kind], dims) * row.flops_per_second / flops;
    CAPTURE(row.rows);
    CAPTURE(row.k);
    CAPTURE(kind);
    CHECK(ratio > 0.8);
    CHECK(ratio < 1.2);
  }
  CHECK(even == 24);
  CHECK(GroupedCost::WorstUneven(gpu).share == doctest::Approx(0.168).epsilon(0.01));
}

}  // namespace
}  // namespace zeroplan
