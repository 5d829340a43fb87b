#include "executor/kernels/cuda/token/token.h"

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/rotary_shape.h"

namespace zeroplan::cuda {
namespace {

CacheShape ShapeOf(const KernelCall& call) {
  const auto [T, H, G, D] = FirstDims<4>(call.dims);
  ZEROPLAN_CHECK(G > 0 && H % G == 0, "{} heads of queries, {} of keys", H, G);
  return {T, H, G, D};
}

const StepState* State(const KernelCall& call, size_t arg) {
  return Arg(call, arg).as<const StepState>();
}

}  // namespace

void EmbedToken(const KernelCall& call) {
  const auto [C, V] = FirstDims<2>(call.dims);
  const KernelArg& wpe = Arg(call, 2);
  const int64_t positions =
      wpe.data == nullptr ? 0 : static_cast<int64_t>(wpe.bytes / DtypeBytes(wpe.dtype)) / C;
  LaunchEmbedToken(Arg(call, 0).as<const int32_t>(), Floats(call, 1), Floats(call, 2), positions,
                   State(call, 3), Floats(call, 4), C, V, LaunchStream(call));
  CheckLaunched(call);
}

void RotaryRow(const KernelCall& call) {
  const auto [D, scaling, original_positions] = FirstDims<3>(call.dims);
  LaunchRotaryRow(RotaryShapeOf(call, D, scaling, original_positions), call.scalars[4],
                  State(call, 0), Arg(call, 1).as<float>(), LaunchStream(call));
  CheckLaunched(call);
}

void KeepKeysValues(const KernelCall& call) {
  LaunchKeepKeysValues(ShapeOf(call), Floats(call, 0), Floats(call, 1), LaunchStream(call));
  CheckLaunched(call);
}

void AttendToken(const KernelCall& call) {
  const CacheShape s = ShapeOf(call);
  const auto floats = static_cast<uint64_t>(s.H * AttendParts(s.T, s.G) * (s.D + 2));
  LaunchAttendToken(s, Floats(call, 0), State(call, 1), Floats(call, 2), Floats(call, 3),
                    static_cast<float*>(ScratchOf(call, 4, floats * sizeof(float))),
                    LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
