// Work that a person waits for, reported on the progress line (core/base/terminal.h).
#pragma once

#include <signal.h>

#include <chrono>
#include <string>
#include <utility>

#include "core/base/terminal.h"

namespace zeroplan {

// Signals that request a stop. The last four are notices: from schedulers that a run is about to
// lose its node, from the system that it has used up its processor time (ulimit -t), repeated every
// second, and from a terminal that closes, sent twice.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGHUP};

// All stop signals, without SIGHUP if it is ignored, as under nohup.
sigset_t StopSignals();

// Blocks the stop signals in this thread, and in all threads started during its lifetime. Signals
// stay pending for ThrowIfInterrupted, for the code that unblocks them in this thread
// (core/base/stop_signals.h), or for the end of a file being written: then they end the
// process.
class StopSignalsBlocked {
 public:
  StopSignalsBlocked();
  ~StopSignalsBlocked();  // restores the earlier mask
  StopSignalsBlocked(const StopSignalsBlocked&) = delete;
  StopSignalsBlocked& operator=(const StopSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// A stop requested while there is nothing to lose yet ends long work at once; later a run handles
// it between two steps (core/base/stop_signals.h).

// Sets the function that reports whether a stop is requested; nullptr: no function. Safe in any
// thread.
void HearStops(bool (*asked)());
// Long work calls this about every hundredth of a second or more often. Throws Error(kInterrupted)
// if a stop is requested, by HearStops' function or by a signal that this thread blocks.
void ThrowIfInterrupted();

// Shows what is being done, from its first Show to its destructor. Costs next to nothing without a
// progress line. One at a time, in one thread.
class LongWork {
 public:
  // `doing`: "Searching". `at_once`: shows it right away, for work that does not report its
  // progress.
  explicit LongWork(std::string doing, bool at_once = false) : doing_(std::move(doing)) {
    if (at_once) ShowProgress(doing_);
  }
  ~LongWork() { HideProgress(); }
  LongWork(const LongWork&) = delete;
  LongWork& operator=(const LongWork&) = delete;

  void Doing(std::string what) { doing_ = std::move(what); }
  // Shows "Searching: 120 programs lowered", ten times a second at most. `how_far()` makes the
  // text, and is called only if it is shown.
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
