#include "executor/kernels/cuda/rotary/rotary.h"

#include <limits>

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/rotary_shape.h"

namespace zeroplan::cuda {
namespace {

// `starts`: the argument that says where documents start.
QkvRows RowsOf(const KernelCall& call, size_t starts) {
  const auto [M, T, H, G, D] = FirstDims<5>(call.dims);
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  ZEROPLAN_CHECK(M <= kMost && T <= kMost && (H + 2 * G) * D <= kMost && D % 2 == 0,
                 "{}: M={} T={} H={} G={} D={}", KernelInfo(call.id).name, M, T, H, G, D);
  return {M,
          static_cast<int>(T),
          static_cast<int>(H),
          static_cast<int>(G),
          static_cast<int>(D),
          Arg(call, starts).as<const int32_t>()};
}

void Rotate(const KernelCall& call, float sign) {
  LaunchRotary(RowsOf(call, 2), Floats(call, 1), Floats(call, 0), sign, LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace

void RotaryTable(const KernelCall& call) {
  const auto [T, D, scaling, original_positions] = FirstDims<4>(call.dims);
  LaunchRotaryTable(RotaryShapeOf(call, D, scaling, original_positions), call.scalars[4],
                    Arg(call, 0).as<float>(), T, LaunchStream(call));
  CheckLaunched(call);
}

void RotaryForward(const KernelCall& call) { Rotate(call, 1.0f); }
void RotaryBackward(const KernelCall& call) { Rotate(call, -1.0f); }

void QkNormRotaryForward(const KernelCall& call) {
  const float eps = call.scalars[0];
  ZEROPLAN_CHECK(eps > 0, "{} without an epsilon", KernelInfo(call.id).name);
  const bool whole = call.dims[5] != 0;
  const auto launch = whole ? LaunchWholeNormRotaryForward : LaunchQkNormRotaryForward;
  launch(RowsOf(call, 5),
         {.qkv_MN = Floats(call, 0),
          .w_2D = Floats(call, 1),
          .table_TD = Floats(call, 2),
          .out_MN = Floats(call, 3),
          .rstd = Arg(call, 4).as<float>(),
          .eps = eps},
         LaunchStream(call));
  CheckLaunched(call);
}

void QkNormRotaryBackward(const KernelCall& call) {
  const QkvRows rows = RowsOf(call, 7);
  const bool whole = call.dims[5] != 0;
  const auto floats =
      static_cast<uint64_t>(whole ? NormBackwardBlocks(rows.M) * rows.rotated() * rows.D
                                  : QkNormBackwardBlocks(rows.M) * 2 * rows.D);
  const auto launch = whole ? LaunchWholeNormRotaryBackward : LaunchQkNormRotaryBackward;
  launch(rows,
         {.dqkv_MN = Floats(call, 0),
          .qkv_MN = Floats(call, 1),
          .w_2D = Floats(call, 2),
          .rstd = Arg(call, 3).as<const float>(),
          .table_TD = Floats(call, 4),
          .dw_2D = Floats(call, 5),
          .add_to_weights = call.has(kAccumulate),
          .partials = static_cast<float*>(ScratchOf(call, 6, floats * sizeof(float)))},
         LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
