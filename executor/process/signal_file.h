// Stop signals and the end of children as something to poll.
#pragma once

#include <signal.h>

#include <vector>

#include "core/base/files.h"

namespace zeroplan {

// Stop signals and SIGCHLD as a file to read. They are blocked in this thread while it lives;
// the old mask comes back at the end.
class SignalFile {
 public:
  SignalFile();  // throws Error(kRuntime)
  ~SignalFile();
  SignalFile(const SignalFile&) = delete;
  SignalFile& operator=(const SignalFile&) = delete;

  int fd() const { return fd_.get(); }
  // The mask for ranks: the one from before, without the stop signals.
  sigset_t MaskOfRanks() const;
  // The signals that asked for a stop since the last call.
  std::vector<int> TakeStops();

 private:
  sigset_t before_;
  UniqueFd fd_;
};

}  // namespace zeroplan
