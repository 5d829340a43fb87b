#include "executor/kernels/cuda/optimizer/optimizer.h"

#include "core/program/kernel_workspace.h"
#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/dynamic8.h"
#include "executor/kernels/unit_segments.h"
#include "executor/optimizer/step_scalars.h"

namespace zeroplan::cuda {
namespace {

AdamSettings Settings(const OptimizerConfig& config, uint64_t seed) {
  return {.beta1 = static_cast<float>(config.betas[0]),
          .beta2 = static_cast<float>(config.betas[1]),
          .eps = static_cast<float>(config.eps),
          .rest1 = static_cast<float>(1 - config.betas[0]),
          .rest2 = static_cast<float>(1 - config.betas[1]),
          .weight_decay = static_cast<float>(config.weight_decay),
          .decoupled = config.adam_w_mode,
          .seed = seed};
}

FloatArray Array(const KernelCall& call, size_t index) {
  return {Arg(call, index).data, Arg(call, index).dtype};
}

// What an AdamW launch works on. Fails for dtypes that the row does not have, and for moments in
// groups that are not whole.
AdamArrays ArraysOf(const KernelCall& call) {
  const AdamArrays arrays = {.grad_n = Floats(call, 0),
                             .master_n = Array(call, 2),
                             .m_n = Array(call, 3),
                             .v_n = Array(call, 4),
                             .param_n = Floats(call, 5)};
  const Dtype master = arrays.master_n.dtype, m = arrays.m_n.dtype, v = arrays.v_n.dtype;
  const bool has_param = arrays.param_n.data != nullptr, halves = master == Dtype::kI16;
  const bool narrow = master == Dtype::kBF16 || master == Dtype::kF16;
  ZEROPLAN_CHECK(master == Dtype::kF32 || halves || narrow, "adamw: masters are {}",
                 DtypeName(master));
  ZEROPLAN_CHECK(call.has(kAccumulate) == halves &&
                     (!halves || (has_param && arrays.param_n.dtype == Dtype::kBF16)) &&
                     (!narrow || !has_param || arrays.param_n.dtype == master),
                 "adamw: a parameter in {} of masters in {}", DtypeName(arrays.param_n.dtype),
                 DtypeName(master));
  if (!IsDynamic8(m)) {
    ZEROPLAN_CHECK(m == v && (m == Dtype::kF32 || m == Dtype::kBF16), "adamw: moments are {}, {}",
                   DtypeName(m), DtypeName(v));
    return arrays;
  }
  ZEROPLAN_CHECK(m == Dtype::kDynamic8 && v == Dtype::kUnsignedDynamic8,
                 "adamw: moments are {}, {}", DtypeName(m), DtypeName(v));
  CheckWholeDynamic8(Arg(call, 3), call.dims[0]);
  CheckWholeDynamic8(Arg(call, 4), call.dims[0]);
  for (const FloatArray& array :
       {arrays.grad_n, arrays.master_n, arrays.m_n, arrays.v_n, arrays.param_n}) {
    ZEROPLAN_CHECK(Aligned(array.data), "adamw: {} at {}", DtypeName(array.dtype), array.data);
  }
  return arrays;
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
  const AdamSettings settings = Settings(program.setup.optimizer, call.context.seed);
  const AdamArrays arrays = ArraysOf(call);
  AdamPieces pieces;
  int64_t launched = 0;
  const auto launch = [&] {
    LaunchAdamW(arrays, Arg(call, 1).as<const StepState>(), launched, pieces, settings,
                LaunchStream(call));
    if (pieces.count > 0) launched = pieces.all[pieces.count - 1].end;
    pieces.count = 0;
  };
  ForEachPiece(unit, first, first + n, [&](const TensorSlot* slot, uint64_t begin, uint64_t stop) {
    AdamPiece piece = {.end = static_cast<int64_t>(stop - first), .tensor = kPaddingPiece};
    if (slot != nullptr) {
      ZEROPLAN_CHECK(!IsDynamic8(arrays.m_n.dtype) || (begin - first) % kDynamic8Group == 0,
                     "adamw: a tensor at element {} cuts a group of 8-bit moments", begin);
      piece.tensor = slot->tensor;
      piece.decays = (*program.layout.tensors)[static_cast<size_t>(slot->tensor)].decay;
      piece.origin = static_cast<uint32_t>(slot->offset - first);
      // Launches begin with a tensor, which is aligned; padding follows in the same one.
      if (pieces.count >= AdamPieces::kMost - 1) launch();
    }
    pieces.all[pieces.count++] = piece;
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
  LaunchStepScalars(SettingsOf(call.context.program->setup, call.flags),
                    Arg(call, 0).as<StepState>(), LaunchStream(call));
  CheckLaunched(call);
}

}  // namespace zeroplan::cuda
