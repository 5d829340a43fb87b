// Ctrl-C and SIGTERM ask for a stop after the current step; a second one ends the process at once.
// So do SIGUSR1 and SIGUSR2, which schedulers send before they take a node away (Slurm's --signal):
// the SIGTERM that follows is then the first.
// A rank gets a Ctrl-C from the terminal and from its launcher (executor/process/launcher.h): that
// is one.
#pragma once

#include <signal.h>

namespace zeroplan {

// Installs the handlers while it lives, with these signals unblocked in this thread, and puts the
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

// Since the scope began; false outside one.
bool StopRequested();

}  // namespace zeroplan
