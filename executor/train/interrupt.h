// Ctrl-C and SIGTERM ask for a stop after the current step; a second one ends the process at once.
// A rank gets a Ctrl-C from the terminal and from its launcher (executor/process/launcher.h): that
// is one.
#pragma once

#include <signal.h>

namespace zeroplan {

// Installs the handlers while it lives, with both signals unblocked in this thread, and puts the
// default ones and the thread's mask back after.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  sigset_t before_;
};

bool StopRequested();

}  // namespace zeroplan
