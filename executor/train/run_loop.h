// The loop of a run: its steps, the validations and saves between them, and what is left at its
// end.
#pragma once

#include "executor/train/run_end.h"
#include "executor/train/run_parts.h"
#include "executor/train/run_saves.h"
#include "executor/train/trainer.h"

namespace zeroplan {

// Steps and validations until the run has its length or ends early, the last checkpoint and
// weights. All ranks call it. Throws as EndDiverged, and what fails.
RunReport RunLoop(const RunParts& parts, Leaving& leaving, RunSaves& saves);

}  // namespace zeroplan
