#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/embedding/embed_backward.h"
#include "executor/kernels/cuda/embedding/token_rows.h"
#include "executor/kernels/cuda/launch_util.h"

namespace zeroplan::cuda {

void EmbedRows(const KernelCall& call) {
  const auto [B, T, C, n] = FirstDims<4>(call.dims);
  LaunchEmbedRows(Arg(call, 0).as<const int32_t>(), Arg(call, 4).as<const int32_t>(),
                  Floats(call, 1), Floats(call, 2), Floats(call, 3), B * T, T, C, n,
                  LaunchStream(call));
  CheckLaunched(call);
}

void SwapColumns(const KernelCall& call) {
  const auto [R, n, Vp] = FirstDims<3>(call.dims);
  LaunchSwapColumns(Arg(call, 0).as<const int32_t>(), Floats(call, 1), Floats(call, 2), R, n, Vp,
                    LaunchStream(call));
  CheckLaunched(call);
}

void EmbedBackward(const KernelCall& call) {
  const auto [B, T, C, V] = FirstDims<4>(call.dims);
  ZEROPLAN_CHECK(B * T <= INT32_MAX, "embed_backward: {} positions are more than int32 counts",
                 B * T);
  const EmbedScratch layout = EmbedScratchOf(B * T, C);
  void* scratch = ScratchOf(call, 4, static_cast<uint64_t>(layout.bytes));
  const size_t sort_bytes = EmbedSortBytes(B * T, V);
  ZEROPLAN_CHECK(sort_bytes <= static_cast<size_t>(layout.sort_bytes),
                 "sorting {} tokens needs {} bytes on this GPU, planned with {}", B * T, sort_bytes,
                 layout.sort_bytes);
  const cudaError_t error = LaunchEmbedBackward({.tokens_BT = Arg(call, 0).as<const int32_t>(),
                                                 .starts_BT = Arg(call, 5).as<const int32_t>(),
                                                 .dx_BTC = Floats(call, 1),
                                                 .dwte_VpC = Floats(call, 2),
                                                 .dwpe_TC = Floats(call, 3),
                                                 .add_to_dwpe = call.has(kAccumulate),
                                                 .B = B,
                                                 .T = T,
                                                 .C = C,
                                                 .V = V},
                                                scratch, LaunchStream(call));
  if (error != cudaSuccess) {
    ThrowRuntime("sorting {} tokens on the GPU: {}", B * T, cudaGetErrorString(error));
  }
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
