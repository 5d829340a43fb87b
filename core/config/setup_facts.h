// What follows from a setup alone: questions that lowering, planner and reports all ask.
#pragma once

#include "core/config/zero_config.h"

namespace zeroplan {

// grad_accum > 1.
bool Accumulates(const TrainSetup& setup);
// True where gradients of a whole unit persist and are accumulated in place (stages 0 and 1, or one
// rank whose optimizer is on the GPU); else whole gradients are transient and shards persist.
bool GradsInPlace(const TrainSetup& setup);
// The dtype of whole gradients, as kernels write them and collectives send them.
Dtype FullGradDtype(const TrainSetup& setup);
// True where parameters of non-persistent units are sharded or away from the GPU (stage 3).
bool ParamsSharded(const TrainSetup& setup);

}  // namespace zeroplan
