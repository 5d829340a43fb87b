#include "executor/kernels/cuda/optimizer/adamw.h"

#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/unit_segments.h"

namespace zeroplan::cuda {
namespace {

AdamSettings Settings(const OptimizerConfig& config) {
  return {.beta1 = static_cast<float>(config.betas[0]),
          .beta2 = static_cast<float>(config.betas[1]),
          .eps = static_cast<float>(config.eps),
          .rest1 = static_cast<float>(1 - config.betas[0]),
          .rest2 = static_cast<float>(1 - config.betas[1]),
          .weight_decay = static_cast<float>(config.weight_decay),
          .decoupled = config.adam_w_mode};
}

}  // namespace

void AdamW(const KernelCall& call) {
  const Program& program = *call.context.program;
  const Unit& unit = program.layout.units[static_cast<size_t>(call.dims[1])];
  const auto n = static_cast<uint64_t>(call.dims[0]);
  const uint64_t first = FirstUnitElement(call, unit);
  const AdamSettings settings = Settings(program.setup.optimizer);
  AdamPieces pieces;
  int64_t launched = 0;
  const auto launch = [&] {
    LaunchAdamW(Floats(call, 0), Arg(call, 1).as<const StepState>(), Arg(call, 2).as<float>(),
                Arg(call, 3).as<float>(), Arg(call, 4).as<float>(), Floats(call, 5), launched,
                pieces, settings, LaunchStream(call));
    if (pieces.count > 0) launched = pieces.ends[pieces.count - 1];
    pieces.count = 0;
  };
  ForEachPiece(unit, first, first + n, [&](const TensorSlot* slot, uint64_t, uint64_t stop) {
    const bool decays =
        slot != nullptr && (*program.layout.tensors)[static_cast<size_t>(slot->tensor)].decay;
    const AdamPiece kind = slot == nullptr ? AdamPiece::kPadding
                           : decays        ? AdamPiece::kDecayed
                                           : AdamPiece::kPlain;
    const auto end = static_cast<int64_t>(stop - first);
    if (pieces.count > 0 && pieces.kinds[pieces.count - 1] == kind) {
      pieces.ends[pieces.count - 1] = end;
      return;
    }
    if (pieces.count == AdamPieces::kMost) launch();
    pieces.kinds[pieces.count] = kind;
    pieces.ends[pieces.count++] = end;
  });
  launch();
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
