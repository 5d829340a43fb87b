#include "core/config/setup_facts.h"

namespace zeroplan {
namespace {

Dtype DtypeWithoutFp32Reduction(const TrainSetup& setup) {
  return GradsInPlace(setup) ? setup.precision.grad_accum_dtype : setup.precision.dtype;
}

}  // namespace

bool Accumulates(const TrainSetup& setup) { return setup.batch.grad_accum > 1; }

bool GradsInPlace(const TrainSetup& setup) {
  if (setup.zero.stage <= 1) return true;
  return setup.batch.world_size == 1 && setup.zero.offload_optimizer.device == OffloadDevice::kNone;
}

bool ReducesInFp32(const TrainSetup& setup) {
  return setup.precision.fp32_reduction && setup.batch.world_size > 1 &&
         DtypeWithoutFp32Reduction(setup) != Dtype::kF32;
}

Dtype FullGradDtype(const TrainSetup& setup) {
  const bool written_in_fp32 = ReducesInFp32(setup) && !GradsInPlace(setup);
  return written_in_fp32 ? Dtype::kF32 : DtypeWithoutFp32Reduction(setup);
}

Dtype SentGradDtype(const TrainSetup& setup) {
  return ReducesInFp32(setup) ? Dtype::kF32 : FullGradDtype(setup);
}

Dtype HostGradDtype(const TrainSetup& setup) {
  const PrecisionConfig& precision = setup.precision;
  return ReducesInFp32(setup) ? precision.grad_accum_dtype : precision.dtype;
}

bool ParamsSharded(const TrainSetup& setup) {
  return setup.zero.stage == 3 &&
         (setup.batch.world_size > 1 || setup.zero.offload_param.device != OffloadDevice::kNone);
}

}  // namespace zeroplan
