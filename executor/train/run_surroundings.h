// What a run asks of its surroundings and leaves there, beside its checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>

#include "core/program/program.h"
#include "executor/engine/engine.h"
#include "executor/train/trainer.h"

namespace zeroplan {

// Room for all that is still to be saved. `steps` is the length of the run, `done` of them before a
// resume, `ranks_here` those of a run on GPUs whose swap files lie on this host. Throws as
// CheckSaveRoom.
void CheckRunRoom(const Program& program, const TrainOptions& options, int64_t steps, int64_t done,
                  int ranks_here);

// The Chrome trace of what this process's ranks ran, and what `options` adds to it, in its
// trace_file. REQUIRES: the engine is drained.
void WriteTrace(const Program& program, const Engine& engine, const TrainOptions& options);

// Hears nothing.
class SilentObserver : public TrainObserver {
 public:
  void OnStart(const StartReport&) override {}
  void OnStep(const StepReport&) override {}
  void OnValidation(int64_t, double) override {}
  void OnSaved(const SaveReport&) override {}
  void OnEnd(const RunReport&) override {}
};

}  // namespace zeroplan
