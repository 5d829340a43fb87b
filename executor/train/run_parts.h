// What the parts of a running run share: the run itself, where it is, and how long each part may
// take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/engine/engine.h"
#include "executor/engine/watch.h"
#include "executor/process/process_group.h"
#include "executor/train/run_open.h"
#include "executor/train/trainer.h"
#include "executor/train/validation.h"

namespace zeroplan {

// How long a step may take before it is taken for hung.
class StepLimit {
 public:
  // `asked` in seconds, 0: none. Unset: kFactor times what is predicted or the median of the last
  // steps, whichever is longer, and kFloor at least; kFirst where neither is known.
  explicit StepLimit(std::optional<double> asked) : asked_(asked) {}

  void Predict(double seconds) { predicted_ = seconds; }
  void Note(double seconds);
  // 0: none.
  double seconds() const;
  // How long a rank may stand still in set-up, loading and saving, which have no time to go by.
  double still_seconds() const { return asked_ && *asked_ <= 0 ? 0 : kStill; }

  static constexpr double kFloor = 300, kFactor = 20, kFirst = 3600, kStill = 1800;

 private:
  static constexpr size_t kWindow = 32;

  std::optional<double> asked_;
  double predicted_ = 0;
  std::vector<double> last_;  // a ring
  size_t noted_ = 0;
};

// How long the parts of a run may take, steps and others.
class RunLimits {
 public:
  // `watch` and `group` outlive it.
  RunLimits(Watch& watch, ProcessGroup& group, std::optional<double> step_timeout)
      : step(step_timeout), watch_(watch), group_(group) {}

  // Set-up, loading and saving may take any time as long as they get on. Rank 0 shows `what` on the
  // progress line (core/base/terminal.h).
  void ExpectMoves(std::string what) const;
  // `what` takes no longer than a step.
  void ExpectStep(std::string what) const;
  // How long ranks wait for one another in the control channel; 0: for ever.
  void SetMeeting(double seconds, const std::string& purpose) const;
  // How long one may stand still that has no other limit; 0: for ever.
  double still_seconds() const { return step.still_seconds(); }

  StepLimit step;

 private:
  Watch& watch_;
  ProcessGroup& group_;
};

// Where a run is.
struct RunState {
  int64_t done = 0;         // optimizer steps, skipped ones included
  uint64_t consumed = 0;    // training positions used
  int64_t resumed_at = -1;  // a step; -1: the run is fresh
  BestValidation best;
};

// All outlive the parts of the run that share them.
struct RunParts {
  const OpenedRun& opened;
  const TrainOptions& options;
  ProcessGroup& group;
  TrainObserver& observer;
  Watch& watch;
  RunLimits& limits;
  Engine& engine;
  RunState& state;

  bool first() const { return group.rank() == 0; }
  const BatchSpec& batch() const { return opened.program.setup.batch; }
  // Every rank's text, by rank. All ranks call it at once.
  std::vector<std::string> Gather(const std::string& mine) const;
  // The meta.json of a checkpoint made now, without the engine's state and files.
  CheckpointMeta Meta() const;
};

}  // namespace zeroplan
