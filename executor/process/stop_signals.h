// Keeps what asks for a stop from the threads of libraries. A signal sent to a process goes to any
// thread that does not block it: one that a driver started would let it end the process.
#pragma once

#include <signal.h>

namespace zeroplan {

// The last two are notices of schedulers that a run is about to lose its node.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
sigset_t StopSignals();

// Blocks them in this thread, and so in those that are started while it lives, by whomever. They
// wait for InterruptScope (executor/train/interrupt.h), which lets this thread have them, or for
// Launch.
class StopSignalsBlocked {
 public:
  StopSignalsBlocked();
  ~StopSignalsBlocked();  // puts the mask from before back
  StopSignalsBlocked(const StopSignalsBlocked&) = delete;
  StopSignalsBlocked& operator=(const StopSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace zeroplan
