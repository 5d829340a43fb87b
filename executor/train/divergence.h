// How a run ends that has diverged.
#pragma once

#include <cstdint>

#include "core/program/step_state.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/train/bad_steps.h"
#include "executor/train/run_saves.h"
#include "executor/train/trainer.h"

namespace zeroplan {

// Saves what was trained before the bad steps, which changed nothing, unless it is saved or no step
// was good; then throws Error(kDiverged) that says what there is to go on from. `state` is that
// after step `done`, `meta` as RunSaves::Save takes it. All ranks call it.
[[noreturn]] void EndDiverged(int64_t done, const StepState& state, const BadSteps& bad_steps,
                              const TrainOptions& options, RunSaves& saves,
                              const CheckpointMeta& meta);

}  // namespace zeroplan
