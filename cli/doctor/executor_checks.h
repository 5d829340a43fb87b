// Work that may hang (a disk of a network, a driver) or end the process (a library that is
// missing), done in a process of its own.
#pragma once

#include <functional>
#include <string>

namespace zeroplan {

struct ChildResult {
  bool in_time = false;  // it ended by itself
  int exit_code = -1;    // where it did, and not by a signal
  int signal = 0;
  std::string out, err;  // at most 1 MiB of each
};

// Forks. The child, whose stdout and stderr are caught, runs `work` and exits with what it returns,
// or becomes another program there. It is killed after `seconds`. Throws Error(kRuntime) if no
// process can be started. REQUIRES: this process has no other threads.
ChildResult RunLimited(double seconds, const std::function<int()>& work);

}  // namespace zeroplan
