// Parameters that are rounded to eight bits before they are gathered: each rank its shard.
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/fp8/quantize.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/unit_segments.h"

namespace zeroplan::cuda {
namespace {

// Calls launch(ShardPieces) with the parts of tensors in the rank's shard, whose slots are `slots`,
// and gap(first, count) with what lies between them.
template <typename Launch, typename Gap>
void ForShardPieces(const KernelCall& call, const KernelArg& slots, Launch&& launch, Gap&& gap) {
  ShardPieces some;
  ForEachShardPiece(call, slots, [&](char* slot, int64_t first, int64_t count) {
    if (slot == nullptr) return gap(first, count);
    some.pieces[some.count++] = {first, count, slot};
    if (some.count < ShardPieces::kMost) return;
    launch(some);
    some.count = 0;
  });
  launch(some);
}

}  // namespace

void ShardMagnitudes(const KernelCall& call) {
  const FloatArray x_n = Floats(call, 0);
  ForShardPieces(
      call, Arg(call, 1),
      [&](const ShardPieces& some) { LaunchShardMagnitudes(x_n, some, LaunchStream(call)); },
      [](int64_t, int64_t) {});
  CheckLaunched(call);
}

void LargestOfParts(const KernelCall& call) {
  LaunchLargestOfParts(Arg(call, 0).as<const float>(), Arg(call, 1).as<float>(), call.dims[0],
                       call.dims[1], LaunchStream(call));
  CheckLaunched(call);
}

void QuantizeShard(const KernelCall& call) {
  const FloatArray x_n = Floats(call, 0);
  auto* q_n = Arg(call, 1).as<uint8_t>();
  const KernelArg& slots = Arg(call, 2);
  ForShardPieces(
      call, slots,
      [&](const ShardPieces& some) { LaunchQuantizeShard(x_n, q_n, some, LaunchStream(call)); },
      [&](int64_t first, int64_t count) {
        cudaMemsetAsync(q_n + first, 0, static_cast<size_t>(count), LaunchStream(call));
      });
  LaunchSetScales(slots.as<char>(), static_cast<int64_t>(ShardUnit(call).slots.size()),
                  LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
