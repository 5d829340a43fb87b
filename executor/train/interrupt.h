// Ctrl-C and SIGTERM ask for a stop after the current step; a second one ends the process at once.
#pragma once

namespace zeroplan {

// Installs the handlers while it lives and puts the old ones back after.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

bool StopRequested();

}  // namespace zeroplan
