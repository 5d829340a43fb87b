#include "executor/kernels/cuda/optimizer/optimizer.h"

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/unit_segments.h"
#include "executor/optimizer/step_scalars.h"

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

// Elements [begin, end) of a tensor.
void InitTensor(const ParamTensor& spec, int tensor, uint64_t seed, uint64_t begin, uint64_t end,
                float* dst, cudaStream_t stream) {
  const auto real = static_cast<uint64_t>(spec.unpadded_rows * spec.shape[1]);
  const uint64_t stop = std::clamp(real, begin, end);  // beyond: rows that pad the vocabulary
  const auto n = static_cast<int64_t>(stop - begin);
  LaunchConstant(dst + n, static_cast<int64_t>(end - stop), 0.0f, stream);
  if (spec.init == InitKind::kNormal) {
    LaunchNormal(dst, n, seed, static_cast<uint32_t>(tensor), begin, spec.init_std, stream);
  } else if (spec.init == InitKind::kUniform) {
    LaunchUniform(dst, n, seed, static_cast<uint32_t>(tensor), begin, spec.init_std, stream);
  } else {
    LaunchConstant(dst, n, spec.init == InitKind::kOnes ? 1.0f : 0.0f, stream);
  }
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

void ParamInit(const KernelCall& call) {
  const ParamLayout& layout = call.context.program->layout;
  const Unit& unit = layout.units[static_cast<size_t>(call.dims[1])];
  const uint64_t first = FirstUnitElement(call, unit);
  auto* master_n = Arg(call, 0).as<float>();
  const cudaStream_t stream = LaunchStream(call);
  ForEachPiece(unit, first, first + static_cast<uint64_t>(call.dims[0]),
               [&](const TensorSlot* slot, uint64_t begin, uint64_t stop) {
                 float* dst = master_n + (begin - first);
                 if (slot == nullptr) {
                   LaunchConstant(dst, static_cast<int64_t>(stop - begin), 0.0f, stream);
                   return;
                 }
                 InitTensor((*layout.tensors)[static_cast<size_t>(slot->tensor)], slot->tensor,
                            call.context.seed, begin - slot->offset, stop - slot->offset, dst,
                            stream);
               });
  CheckLaunched(call);
}

void NormSq(const KernelCall& call) {
  const int64_t n = call.dims[0];
  const uint64_t bytes = static_cast<uint64_t>(NormBlocks(n)) * sizeof(double);
  LaunchNormSq(Floats(call, 0), n, Arg(call, 1).as<StepState>(), call.has(kAccumulate),
               static_cast<double*>(ScratchOf(call, 2, bytes)), LaunchStream(call));
  CheckLaunched(call);
}

void StepScalars(const KernelCall& call) {
  const TrainSetup& setup = call.context.program->setup;
  LaunchStepScalars({setup.optimizer, setup.precision, setup.batch, GradReplicas(setup)},
                    Arg(call, 0).as<StepState>(), LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
