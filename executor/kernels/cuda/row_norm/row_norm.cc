#include "executor/kernels/cuda/row_norm/row_norm.h"

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"

namespace zeroplan::cuda {
namespace {

float Epsilon(const KernelCall& call) {
  const float eps = call.scalars[0];
  ZEROPLAN_CHECK(eps > 0, "{} without an epsilon", KernelInfo(call.id).name);
  return eps;
}

float* Partials(const KernelCall& call, size_t index, int64_t sums) {
  const auto floats = static_cast<uint64_t>(NormBackwardBlocks(call.dims[0]) * sums);
  return static_cast<float*>(ScratchOf(call, index, floats * sizeof(float)));
}

}  // namespace

void LayerNormForward(const KernelCall& call) {
  LaunchRowNormForward({.norm = RowNorm::kLayer,
                        .x_MC = Floats(call, 0),
                        .w_C = Floats(call, 1),
                        .b_C = Floats(call, 2),
                        .y_MC = Floats(call, 3),
                        .stats = Arg(call, 4).as<float>(),
                        .M = call.dims[0],
                        .C = call.dims[1],
                        .eps = Epsilon(call),
                        .amax = Arg(call, 5).as<float>()},
                       LaunchStream(call));
  CheckLaunched(call);
}

void LayerNormBackward(const KernelCall& call) {
  LaunchRowNormBackward({.norm = RowNorm::kLayer,
                         .dy_MC = Floats(call, 0),
                         .x_MC = Floats(call, 1),
                         .w_C = Floats(call, 2),
                         .stats = Arg(call, 3).as<const float>(),
                         .dx_MC = Floats(call, 4),
                         .dw_C = Floats(call, 5),
                         .db_C = Floats(call, 6),
                         .add_to_dx = call.has(kAddToOutput),
                         .add_to_weights = call.has(kAccumulate),
                         .partials = Partials(call, 7, 2 * call.dims[1]),
                         .M = call.dims[0],
                         .C = call.dims[1],
                         .amax = Arg(call, 8).as<float>()},
                        LaunchStream(call));
  CheckLaunched(call);
}

void RmsNormForward(const KernelCall& call) {
  LaunchRowNormForward({.norm = RowNorm::kRms,
                        .x_MC = Floats(call, 0),
                        .w_C = Floats(call, 1),
                        .b_C = {},
                        .y_MC = Floats(call, 2),
                        .stats = Arg(call, 3).as<float>(),
                        .M = call.dims[0],
                        .C = call.dims[1],
                        .eps = Epsilon(call),
                        .amax = Arg(call, 4).as<float>()},
                       LaunchStream(call));
  CheckLaunched(call);
}

void RmsNormBackward(const KernelCall& call) {
  LaunchRowNormBackward({.norm = RowNorm::kRms,
                         .dy_MC = Floats(call, 0),
                         .x_MC = Floats(call, 1),
                         .w_C = Floats(call, 2),
                         .stats = Arg(call, 3).as<const float>(),
                         .dx_MC = Floats(call, 4),
                         .dw_C = Floats(call, 5),
                         .db_C = {},
                         .add_to_dx = call.has(kAddToOutput),
                         .add_to_weights = call.has(kAccumulate),
                         .partials = Partials(call, 6, call.dims[1]),
                         .M = call.dims[0],
                         .C = call.dims[1],
                         .amax = Arg(call, 7).as<float>()},
                        LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
