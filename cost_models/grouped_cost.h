// Seconds of the matmuls of experts (KernelId::kGroupedMatmulForward and its gradients).
//
// One matmul of all rows, whose experts each end in a tile that is half full on average: R rows
// take as long as R + E * kHalfTile, times a factor by kind. The gradient of the weights sums over
// an expert's rows alone, R / E of them, for an output of all experts. The factor is the mean of
// measured over computed seconds of the profile's rows with even experts (GpuProfile::grouped);
// without rows that of the H200, whose kernels all Hopper GPUs have, or for other architectures
// kPlainFactor.
#pragma once

#include <array>

#include "core/program/kernel.h"
#include "cost_models/gemm_cost.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// Whether a kernel of that cost is a matmul of experts.
constexpr bool IsGrouped(CostKind cost) {
  return cost == CostKind::kGroupedForward || cost == CostKind::kGroupedData ||
         cost == CostKind::kGroupedWeight;
}

class GroupedCost {
 public:
  // A matmul of experts as one plain matmul. `dims`: R, K, N, E.
  struct Shape {
    GemmKind kind;
    int64_t m, k, n;
  };
  static Shape ShapeOf(CostKind cost, const KernelDims& dims);

  GroupedCost(const GpuProfile& gpu, const GemmCost& gemm);

  // `gemm`: as given to the constructor.
  double Seconds(const GemmCost& gemm, CostKind cost, Dtype dtype, const KernelDims& dims) const;

  // The slowest matmuls of unevenly filled experts, by the profile's rows, else the H200's.
  struct Uneven {
    double share = 0;       // by so much longer they take than evenly filled ones
    int64_t fullest = 100;  // rows of the fullest expert among those measured, % of the mean
  };
  static Uneven WorstUneven(const GpuProfile& gpu);

 private:
  std::array<double, 3> factors_{};  // by GemmKind
};

}  // namespace zeroplan
