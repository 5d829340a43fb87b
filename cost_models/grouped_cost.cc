#include "cost_models/grouped_cost.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hwprofiles/sanity.h"

namespace zeroplan {
namespace {

constexpr int64_t kHalfTile = 64;
// An H200's (hwprofiles/gpus), for Hopper GPUs without such rows.
constexpr std::array<double, 3> kHopperFactors = {1.16, 1.17, 1.07};
constexpr GroupedCost::Uneven kHopperUneven = {0.17, 553};
// The plain kernels of other architectures, which reached 197 to 239 TFLOP/s on an H200.
constexpr double kPlainFactor = 3;

CostKind CostOf(GemmKind kind) {
  return kind == GemmKind::kForward ? CostKind::kGroupedForward
         : kind == GemmKind::kData  ? CostKind::kGroupedData
                                    : CostKind::kGroupedWeight;
}

}  // namespace

GroupedCost::Shape GroupedCost::ShapeOf(CostKind cost, const KernelDims& dims) {
  const auto [R, K, N, E] = FirstDims<4>(dims);
  switch (cost) {
    case CostKind::kGroupedForward:
      return {GemmKind::kForward, R + E * kHalfTile, K, N};
    case CostKind::kGroupedData:
      return {GemmKind::kData, R + E * kHalfTile, K, N};
    default:
      return {GemmKind::kWeight, std::max<int64_t>(1, R / E), K, N * E};
  }
}

GroupedCost::GroupedCost(const GpuProfile& gpu, const GemmCost& gemm) {
  std::array<double, 3> logs{};
  std::array<int, 3> rows{};
  for (const GroupedRate& row : gpu.grouped ? gpu.grouped->rows : std::vector<GroupedRate>{}) {
    if (row.fullest != 100) continue;
    const KernelDims dims = {row.rows, row.k, row.n, row.experts};
    const Shape shape = ShapeOf(CostOf(row.kind), dims);
    const double flops = KernelInfo(KernelId::kGroupedMatmulForward).flops(dims);
    const double computed = gemm.Seconds(shape.kind, row.dtype, shape.m, shape.k, shape.n);
    logs[static_cast<size_t>(row.kind)] += std::log(flops / row.flops_per_second / computed);
    ++rows[static_cast<size_t>(row.kind)];
  }
  for (size_t kind = 0; kind < factors_.size(); ++kind) {
    factors_[kind] = rows[kind] > 0                         ? std::exp(logs[kind] / rows[kind])
                     : gpu.architecture == "hopper"         ? kHopperFactors[kind]
                     : gpu.architecture == kCpuArchitecture ? 1
                                                            : kPlainFactor;
  }
}

double GroupedCost::Seconds(const GemmCost& gemm, CostKind cost, Dtype dtype,
                            const KernelDims& dims) const {
  const Shape shape = ShapeOf(cost, dims);
  return factors_[static_cast<size_t>(shape.kind)] *
         gemm.Seconds(shape.kind, dtype, shape.m, shape.k, shape.n);
}

GroupedCost::Uneven GroupedCost::WorstUneven(const GpuProfile& gpu) {
  if (!gpu.grouped) return kHopperUneven;
  Uneven worst;
  for (const GroupedRate& uneven : gpu.grouped->rows) {
    worst.fullest = std::max(worst.fullest, uneven.fullest);
    for (const GroupedRate& even : gpu.grouped->rows) {
      GroupedRate same = uneven;
      same.fullest = 100;
      same.flops_per_second = even.flops_per_second;
      if (uneven.fullest == 100 || same != even) continue;
      const double longer = even.flops_per_second / uneven.flops_per_second - 1;
      worst.share = std::max(worst.share, longer);
    }
  }
  return worst;
}

}  // namespace zeroplan
