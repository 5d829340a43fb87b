// A folder with a model's config for runs of `zeroplan train`, gone with the object.
#pragma once

#include <sys/wait.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/paths.h"
#include "tests/run_metrics.h"
#include "tests/temp_dir.h"
#include "tests/tiny_config.h"

namespace zeroplan {

inline constexpr int kTrainSteps = 30;

class Workspace {
 public:
  Workspace() { testing::WriteGpt2Config(path("config.json")); }
  std::string path(const std::string& name) const { return root_.path(name); }
  // The part of a command line that all runs share.
  std::string Train(const std::string& more, int steps = kTrainSteps) const {
    return "train --model " + path("config.json") + " --data " + SourcePath("LICENSE") +
           " --threads 1 "
           "--lr 3e-3 --steps " +
           std::to_string(steps) + " " + more;
  }

 private:
  TempDir root_;
};

// Whether that child has ended; it still has to be waited for.
inline bool HasEnded(pid_t child) {
  siginfo_t ended{};
  return waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == child;
}

// Waits until the run has taken steps. False if it ended before.
inline bool HasSteps(pid_t run, const std::string& metrics) {
  while (LossesByStep(metrics).empty()) {
    if (HasEnded(run)) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

}  // namespace zeroplan
