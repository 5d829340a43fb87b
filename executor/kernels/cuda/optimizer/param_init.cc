#include "executor/kernels/cuda/optimizer/param_init.h"

#include "executor/kernels/cuda/cuda_kernels.h"
#include "executor/kernels/cuda/launch_util.h"
#include "executor/kernels/unit_segments.h"

namespace zeroplan::cuda {
namespace {

// Elements [begin, end) of a tensor.
void InitTensor(const ParamTensor& spec, int tensor, uint64_t seed, uint64_t begin, uint64_t end,
                float* dst, cudaStream_t stream) {
  const auto real = static_cast<uint64_t>(spec.unpadded_rows * spec.shape[1]);
  const uint64_t stop = std::clamp(real, begin, end);  // beyond: rows that pad the vocabulary
  const auto n = static_cast<int64_t>(stop - begin);
  LaunchConstant(dst + n, static_cast<int64_t>(end - stop), 0.0f, stream);
  if (spec.init == InitKind::kNormal) {
    LaunchNormal(dst, n, seed, static_cast<uint32_t>(tensor), begin, spec.init_std, stream);
  } else {
    LaunchConstant(dst, n, spec.init == InitKind::kOnes ? 1.0f : 0.0f, stream);
  }
}

}  // namespace

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

}  // namespace zeroplan::cuda
