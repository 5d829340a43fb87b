// Starts a run's ranks on several hosts, through ssh or another remote shell.
//
// On each host an agent (RunHostAgent) starts that host's ranks; their output comes back through
// the remote shell. The run's secret and all orders go through the agents' stdin, so that no host's
// list of processes shows them. Ranks start when every host is ready: a host that cannot be
// reached, lacks the program or has too few GPUs ends the run before it begins.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "executor/process/launcher.h"

namespace zeroplan {

// Launches the ranks of options.hosts. Each agent works in this process's folder (which must exist
// on every host) with the present values of the variables NCCL_*, UCX_*, ZEROPLAN_*, MASTER_PORT
// and LD_LIBRARY_PATH. Rank 0 is the first host's first; its address is that host's name without
// the user, or MASTER_ADDR. Its stdout is ours; all other output goes to stderr, with "node2: "
// before lines of a host that no rank printed. A remote shell that ends by itself counts as a
// failure of its host.
LaunchEnd LaunchOnHosts(const LaunchOptions& options);

// The agent: the process on each host that starts the host's ranks and reports on them.
//
// Launcher and agent exchange lines over the agent's stdin and stdout, which the remote shell
// transports; rank 0's own output uses the same stdout, so the agent's lines are marked.
//
//   launcher: secret HEX                 agent: ready PORT      rank 0's, on its host; else 0
//   launcher: start ADDRESS PORT         ...
//   launcher: stop SIGNAL                agent: end CODE KILLED STOPPED FAILURE
//
// When its stdin ends, the launcher or the connection is gone, and the agent kills its ranks.

// In an agent's environment: "FIRST_RANK RANKS WORLD_SIZE ADDRESS", ADDRESS being rank 0's host.
inline constexpr const char* kHostPartVariable = "ZEROPLAN_HOST_PART";
// The prefix of each line of an agent on stdout.
inline constexpr std::string_view kAgentMark = "\x01zeroplan ";

// Whether this process is an agent: the launcher set kHostPartVariable.
bool IsHostAgent();

// Runs this host's ranks to their end and returns the exit code. `options` has program and
// arguments. Calls `check` with the number of ranks before it reports the host as ready; `check`
// throws if the host cannot run that many. Throws Error(kRuntime) if rank 0's port is in use, or
// the launcher is gone before the start. REQUIRES: IsHostAgent(), and as Launch.
int RunHostAgent(LaunchOptions options, const std::function<void(int ranks)>& check);

// Writes and parses the line "end ...".
std::string WriteLaunchEnd(const LaunchEnd& end);
std::optional<LaunchEnd> ReadLaunchEnd(const std::string& line);

}  // namespace zeroplan
