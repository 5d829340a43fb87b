// The loop of a run: its steps, the validations and saves between them, and the remaining work at
// its end.
#pragma once

#include "executor/train/run_end.h"
#include "executor/train/run_parts.h"
#include "executor/train/run_saves.h"
#include "executor/train/trainer.h"

namespace zeroplan {

// Runs steps and validations until the run has its length or ends early, then the last checkpoint
// and weights. All ranks call it. Throws as EndDiverged, and other failures.
RunReport RunLoop(const RunParts& parts, Leaving& leaving, RunSaves& saves);

}  // namespace zeroplan
