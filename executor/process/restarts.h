// A run that goes on by itself: ranks that failed are started again and resume.
#pragma once

#include <functional>
#include <string>

#include "executor/process/launcher.h"

namespace zeroplan {

// In the ranks' environment: how often they were started before. Set, if 0, by LaunchWithRestarts
// alone: a process that has it is one of its ranks.
inline constexpr const char* kRestartVariable = "ZEROPLAN_RESTART";

struct RestartOptions {
  int restarts = 0;  // at most this many
  // Where ranks that are started now and resume go on: "step 40".
  std::function<std::string()> where;
};

// Launches as Launch does. Where ranks end with kRuntime or are killed, and nobody asked for a
// stop, all are started again with --resume added to their arguments, and a line says why and where
// they go on. Other ends are the user's to mend: bad usage, no room, divergence, a stop. Returns
// the last exit code.
int LaunchWithRestarts(LaunchOptions options, const RestartOptions& restarts);

}  // namespace zeroplan
