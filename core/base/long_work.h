// Work that a person waits for, on the progress line (core/base/terminal.h).
#pragma once

#include <signal.h>

#include <chrono>
#include <string>
#include <utility>

#include "core/base/terminal.h"

namespace zeroplan {

// Signals that ask for a stop. The last four are notices: of schedulers that a run is about to lose
// its node, of the system that it has used up its processor time (ulimit -t), which it repeats
// every second, and of a terminal that goes away, which sends its own twice.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGHUP};

// All of them, but SIGHUP where it is ignored, as nohup has it.
sigset_t StopSignals();

// Blocks them in this thread, and so in those that are started while it lives, by whomever. They
// wait for ThrowIfInterrupted, for what lets this thread have them
// (executor/process/stop_signals.h), or for the end of a file that is being written: then they end
// the process.
class StopSignalsBlocked {
 public:
  StopSignalsBlocked();
  ~StopSignalsBlocked();  // puts the mask from before back
  StopSignalsBlocked(const StopSignalsBlocked&) = delete;
  StopSignalsBlocked& operator=(const StopSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// A stop that is asked for while nothing is there yet that it would lose ends long work at once;
// later a run hears it between two steps (executor/process/stop_signals.h).

// `asked()` says whether one is; nullptr: whoever asks is not heard here. Safe in any thread.
void HearStops(bool (*asked)());
// Called by long work, about every hundredth of a second or more often. Throws Error(kInterrupted)
// if a stop is asked for: as HearStops has it, or by a signal that this thread blocks.
void ThrowIfInterrupted();

// Says what is being done from its first Show until it ends. Costs next to nothing where there is
// no progress line. One at a time, in one thread.
class LongWork {
 public:
  // "Searching". `at_once`: it is shown right away, as for work that does not say how far it is.
  explicit LongWork(std::string doing, bool at_once = false) : doing_(std::move(doing)) {
    if (at_once) ShowProgress(doing_);
  }
  ~LongWork() { HideProgress(); }
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  void Doing(std::string what) { doing_ = std::move(what); }
  // "Searching: 120 programs lowered", ten times a second at most. `how_far()` makes the text, and
  // is called only where it is shown.
  template <typename HowFar>
  void Show(HowFar how_far) {
    ThrowIfInterrupted();
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    if (ProgressColumns() > 0) ShowProgress(doing_ + ": " + how_far());
  }

 private:
  std::string doing_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace zeroplan
