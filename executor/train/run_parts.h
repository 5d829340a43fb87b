// Data shared by the parts of a running run: the run itself, its progress, and the time limits of
// its parts.
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

// The time after which a step counts as hung.
class StepLimit {
 public:
  // `asked`: in seconds, 0: no limit. Unset: kFactor times the longer of the prediction and the
  // median of the last steps, and kFloor at least; kFirst if neither is known.
  explicit StepLimit(std::optional<double> asked) : asked_(asked) {}

  void Predict(double seconds) { predicted_ = seconds; }
  void Note(double seconds);
  // 0: no limit.
  double seconds() const;
  // The longest time without progress of a rank in set-up, loading and saving, which have no
  // predicted time.
  double still_seconds() const { return asked_ && *asked_ <= 0 ? 0 : kStill; }

  static constexpr double kFloor = 300, kFactor = 20, kFirst = 3600, kStill = 1800;

 private:
  static constexpr size_t kWindow = 32;

  std::optional<double> asked_;
  double predicted_ = 0;
  std::vector<double> last_;  // ring buffer
  size_t noted_ = 0;
};

// Time limits of the parts of a run, steps and others.
class RunLimits {
 public:
  // `watch` and `group` must outlive it.
  RunLimits(Watch& watch, ProcessGroup& group, std::optional<double> step_timeout)
      : step(step_timeout), watch_(watch), group_(group) {}

  // Allows set-up, loading and saving any time as long as they progress. Rank 0 shows `what` on the
  // progress line (core/base/terminal.h).
  void ExpectMoves(std::string what) const;
  // Limits `what` to the time of a step.
  void ExpectStep(std::string what) const;
  // Sets how long ranks wait for one another in the control channel; 0: for ever.
  void SetMeeting(double seconds, const std::string& purpose) const;
  // The longest time without progress for parts without another limit; 0: no limit.
  double still_seconds() const { return step.still_seconds(); }

  StepLimit step;

 private:
  Watch& watch_;
  ProcessGroup& group_;
};

// The progress of a run.
struct RunState {
  int64_t done = 0;         // optimizer steps, skipped ones included
  uint64_t consumed = 0;    // training positions used
  int64_t resumed_at = -1;  // step at which it resumed; -1: the run is fresh
  BestValidation best;
};

// References; all must outlive the parts of the run that share them.
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
