#include "executor/kernels/cuda/layer_norm/layer_norm.h"

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"

namespace zeroplan::cuda {

void LayerNormForward(const KernelCall& call) {
  const float eps = call.scalars[0];
  ZEROPLAN_CHECK(eps > 0, "layer norm without an epsilon");
  LaunchLayerNormForward(Floats(call, 0), Floats(call, 1), Floats(call, 2), Floats(call, 3),
                         Arg(call, 4).as<float>(), call.dims[0], call.dims[1], eps,
                         LaunchStream(call));
  CheckLaunched(call);
}

void LayerNormBackward(const KernelCall& call) {
  const int64_t M = call.dims[0], C = call.dims[1];
  const auto floats = static_cast<uint64_t>(NormBackwardBlocks(M) * 2 * C);
  auto* partials = static_cast<float*>(ScratchOf(call, 7, floats * sizeof(float)));
  const LayerNormGradients out{.dx_MC = Floats(call, 4),
                               .dw_C = Floats(call, 5),
                               .db_C = Floats(call, 6),
                               .add_to_dx = call.has(kAddToOutput),
                               .add_to_weights = call.has(kAccumulate)};
  LaunchLayerNormBackward(Floats(call, 0), Floats(call, 1), Floats(call, 2),
                          Arg(call, 3).as<const float>(), out, partials, M, C, LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
