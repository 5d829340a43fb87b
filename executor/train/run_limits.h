// How long the parts of a run may take that are no step.
#pragma once

#include <string>

#include "executor/engine/watch.h"
#include "executor/process/process_group.h"
#include "executor/train/step_limit.h"

namespace zeroplan {

class RunLimits {
 public:
  // All outlive it.
  RunLimits(Watch& watch, ProcessGroup& group, const StepLimit& step_limit)
      : watch_(watch), group_(group), step_limit_(step_limit) {}

  // Set-up, loading and saving take as long as they take, as long as they get on. Rank 0 shows
  // `what` on the progress line (core/base/terminal.h).
  void ExpectMoves(std::string what) const;
  // How long ranks wait for one another in the control channel; 0: for ever.
  void SetMeeting(double seconds, const std::string& purpose) const;
  // How long one may stand still that has no other limit; 0: for ever.
  double still_seconds() const { return step_limit_.still_seconds(); }

 private:
  Watch& watch_;
  ProcessGroup& group_;
  const StepLimit& step_limit_;
};

}  // namespace zeroplan
