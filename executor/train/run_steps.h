// The loop of a run over its steps.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "executor/train/run_end.h"
#include "executor/train/run_parts.h"
#include "executor/train/run_saves.h"
#include "executor/train/run_validation.h"
#include "executor/train/stragglers.h"

namespace zeroplan {

// All ranks call it at the same points of the run.
class RunSteps {
 public:
  // All outlive it.
  RunSteps(const RunParts& parts, Leaving& leaving, RunSaves& saves, RunValidation& validation,
           BadSteps& bad_steps)
      : parts_(parts),
        leaving_(leaving),
        saves_(saves),
        validation_(validation),
        bad_steps_(bad_steps) {}

  // Makes steps, and what is due between them, until the run has its length or ends early. Throws
  // as EndDiverged, and what fails.
  void Run();

  double median_seconds() const;
  double last_loss() const { return last_loss_; }
  // Memory in use on this rank's device, by anyone: the highest seen, now among them.
  std::optional<uint64_t> LookAtDevice();

 private:
  void Step();
  StepState RunOnEngine();
  void Report(const StepState& state, double seconds);

  const RunParts& parts_;
  Leaving& leaving_;
  RunSaves& saves_;
  RunValidation& validation_;
  BadSteps& bad_steps_;
  Stragglers stragglers_;
  std::vector<double> seconds_;  // of each step
  double last_loss_ = 0;
  std::optional<uint64_t> device_used_bytes_;
};

}  // namespace zeroplan
