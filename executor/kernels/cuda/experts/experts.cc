#include "executor/kernels/cuda/experts/experts.h"

#include <limits>

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/experts/grouped_matmul.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/cuda/library_check.h"

namespace zeroplan::cuda {
namespace {

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

RouteShape ShapeOf(const KernelCall& call) {
  const auto [M, E, k, normalized, shared] = FirstDims<5>(call.dims);
  ZEROPLAN_CHECK(k >= 1 && k <= E && M * k <= kMost, "{}: M={} E={} k={}", KernelInfo(call.id).name,
                 M, E, k);
  return {M, static_cast<int>(E), static_cast<int>(k), normalized != 0, shared != 0};
}

// A thread keeps its GPU.
int Capability() {
  static thread_local const int known = ComputeCapabilityHere();
  return known;
}

struct Grouped {
  GroupedMatmul product;
  FloatArray a, b, out;
  void* scratch;
  bool on_hopper;
};
// Argument 3 is the result; `b` and `starts` are the other two. Hopper's kernels write results of
// the operands' type, and weight gradients of fp32, too.
Grouped GroupedOf(const KernelCall& call, size_t b, size_t starts, bool weight = false) {
  const auto [R, K, N, E] = FirstDims<4>(call.dims);
  ZEROPLAN_CHECK(R <= kMost && K <= kMost && N <= kMost, "{}: R={} K={} N={}",
                 KernelInfo(call.id).name, R, K, N);
  Grouped g{{R, K, N, E, Arg(call, starts).as<const int32_t>()},
            Floats(call, 0),
            Floats(call, b),
            Floats(call, 3),
            ScratchOf(call, 4, kGroupedScratchBytes),
            false};
  g.on_hopper = g.a.dtype == g.b.dtype && (weight || g.out.dtype == g.a.dtype) &&
                Aligned(g.a.data) && Aligned(g.b.data) && Aligned(g.out.data) &&
                TakesHopperGroups(g.product, g.a.dtype, g.out.dtype, Capability());
  return g;
}

void CheckGrouped(const KernelCall& call, cudaError_t error) {
  if (error == cudaSuccess) return CheckLaunched(call);
  ThrowRuntime("the GPU refused kernel {} ({}): {}", KernelInfo(call.id).name,
               FormatDims(call.id, call.dims, call.scalars), cudaGetErrorString(error));
}

}  // namespace

static_assert(GroupedScratchBytes() <= kGroupedScratchBytes);

void RouteForward(const KernelCall& call) {
  LaunchRouteForward(ShapeOf(call),
                     {Arg(call, 0).as<const float>(), Arg(call, 1).as<int32_t>(),
                      Arg(call, 2).as<float>(), Arg(call, 3).as<float>()},
                     LaunchStream(call));
  CheckLaunched(call);
}

void RouteBackward(const KernelCall& call) {
  LaunchRouteBackward(ShapeOf(call),
                      {Arg(call, 0).as<const float>(), Arg(call, 1).as<const int32_t>(),
                       Arg(call, 2).as<const float>(), Arg(call, 3).as<const float>(),
                       Arg(call, 4).as<const float>(), Floats(call, 5)},
                      LaunchStream(call));
  CheckLaunched(call);
}

void OrderRows(const KernelCall& call) {
  const auto [M, k, E] = FirstDims<3>(call.dims);
  const int64_t R = M * k, counts = OrderBlocks(R) * E;
  LaunchOrderRows(
      {Arg(call, 0).as<const int32_t>(), Arg(call, 1).as<int32_t>(), Arg(call, 2).as<int32_t>(),
       Arg(call, 3).as<int32_t>(),
       static_cast<int32_t*>(ScratchOf(call, 4, static_cast<uint64_t>(counts) * sizeof(int32_t)))},
      R, static_cast<int>(E), LaunchStream(call));
  CheckLaunched(call);
}

void GatherRows(const KernelCall& call) {
  const auto [M, C, k] = FirstDims<3>(call.dims);
  LaunchGatherRows(Floats(call, 0), Arg(call, 1).as<const int32_t>(), Floats(call, 2), M, C,
                   static_cast<int>(k), LaunchStream(call));
  CheckLaunched(call);
}

void SumRows(const KernelCall& call) {
  const auto [M, C, k] = FirstDims<3>(call.dims);
  LaunchSumRows(Floats(call, 0), Arg(call, 1).as<const int32_t>(), Floats(call, 2), Floats(call, 3),
                call.has(kAccumulate), M, C, static_cast<int>(k), LaunchStream(call));
  CheckLaunched(call);
}

void GatedSwiGluForward(const KernelCall& call) {
  const auto [R, F] = FirstDims<2>(call.dims);
  LaunchGatedSwiGluForward(Floats(call, 0), Arg(call, 1).as<const float>(),
                           Arg(call, 2).as<const int32_t>(), Floats(call, 3), R, F,
                           LaunchStream(call));
  CheckLaunched(call);
}

void GatedSwiGluBackward(const KernelCall& call) {
  const auto [R, F] = FirstDims<2>(call.dims);
  LaunchGatedSwiGluBackward(Floats(call, 0), Arg(call, 1).as<const float>(),
                            Arg(call, 2).as<const int32_t>(), Floats(call, 3),
                            Arg(call, 4).as<float>(), R, F, LaunchStream(call));
  CheckLaunched(call);
}

void GroupedMatmulForward(const KernelCall& call) {
  const Grouped g = GroupedOf(call, 1, 2);
  CheckGrouped(call, g.on_hopper
                         ? LaunchHopperGroupedForward(g.product, g.a.dtype, g.a.data, g.b.data,
                                                      g.out.data, g.scratch, LaunchStream(call))
                         : LaunchPlainGroupedForward(g.product, g.a, g.b, g.out, Capability(),
                                                     LaunchStream(call)));
}

void GroupedMatmulBackwardData(const KernelCall& call) {
  const Grouped g = GroupedOf(call, 1, 2);
  CheckGrouped(call, g.on_hopper
                         ? LaunchHopperGroupedData(g.product, g.a.dtype, g.a.data, g.b.data,
                                                   g.out.data, g.scratch, LaunchStream(call))
                         : LaunchPlainGroupedData(g.product, g.a, g.b, g.out, Capability(),
                                                  LaunchStream(call)));
}

void GroupedMatmulBackwardWeight(const KernelCall& call) {
  const Grouped g = GroupedOf(call, 1, 2, true);
  const bool add = call.has(kAccumulate);
  CheckGrouped(call, g.on_hopper
                         ? LaunchHopperGroupedWeight(g.product, g.a.dtype, g.b.data, g.a.data,
                                                     g.out, add, g.scratch, LaunchStream(call))
                         : LaunchPlainGroupedWeight(g.product, g.b, g.a, g.out, add, Capability(),
                                                    LaunchStream(call)));
}

void RouterStats(const KernelCall& call) {
  const auto [M, E, shared] = FirstDims<3>(call.dims);
  const auto floats = static_cast<uint64_t>(RouterStatsBlocks(M) * (E + 1));
  LaunchRouterStats(Arg(call, 0).as<const float>(), Arg(call, 1).as<const int32_t>(),
                    Arg(call, 2).as<float>(),
                    static_cast<float*>(ScratchOf(call, 3, floats * sizeof(float))), M,
                    static_cast<int>(E), shared != 0, LaunchStream(call));
  CheckLaunched(call);
}

void BalanceLoss(const KernelCall& call) {
  const auto [M, E, L] = FirstDims<3>(call.dims);
  LaunchBalanceLoss(
      {Arg(call, 0).as<const float>(), Arg(call, 1).as<const int32_t>(),
       Arg(call, 2).as<const StepState>(), Arg(call, 3).as<float>(), Arg(call, 4).as<double>()},
      M, static_cast<int>(E), static_cast<int>(L), call.scalars[0], call.scalars[1],
      call.has(kAccumulate), LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
