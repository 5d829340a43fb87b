// What follows from a setup alone: questions that lowering, planner and reports all ask.
#pragma once

#include "core/config/zero_config.h"

namespace zeroplan {

// grad_accum > 1.
bool Accumulates(const TrainSetup& setup);
// True where gradients of a whole unit persist and are accumulated in place (stages 0 and 1, or one
// rank whose optimizer is on the GPU); else whole gradients are transient and shards persist.
bool GradsInPlace(const TrainSetup& setup);
// True where fp32_reduction has an effect: several ranks, whose gradients are of 16 bit without it.
bool ReducesInFp32(const TrainSetup& setup);
// The dtype of whole gradients, as kernels write them. Transient ones are written in what is sent.
Dtype FullGradDtype(const TrainSetup& setup);
// The dtype in which collectives send gradients. Where it is not FullGradDtype (fp32_reduction at
// stages 0 and 1), each bucket is converted before it is reduced, and back after.
Dtype SentGradDtype(const TrainSetup& setup);
// The dtype in which reduced gradients go to host memory micro-step by micro-step (stages 2 and 3
// with offloaded states): as they were sent, but no wider than they are summed.
Dtype HostGradDtype(const TrainSetup& setup);
// True where parameters of non-persistent units are sharded or away from the GPU (stage 3).
bool ParamsSharded(const TrainSetup& setup);

}  // namespace zeroplan
