#include "core/config/setup_facts.h"

namespace zeroplan {

bool Accumulates(const TrainSetup& setup) { return setup.batch.grad_accum > 1; }

bool GradsInPlace(const TrainSetup& setup) {
  if (setup.zero.stage <= 1) return true;
  return setup.batch.world_size == 1 && setup.zero.offload_optimizer.device == OffloadDevice::kNone;
}

Dtype FullGradDtype(const TrainSetup& setup) {
  return GradsInPlace(setup) ? setup.precision.grad_accum_dtype : setup.precision.dtype;
}

bool ParamsSharded(const TrainSetup& setup) {
  return setup.zero.stage == 3 &&
         (setup.batch.world_size > 1 || setup.zero.offload_param.device != OffloadDevice::kNone);
}

}  // namespace zeroplan
