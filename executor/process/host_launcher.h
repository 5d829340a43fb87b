// Starts a run's ranks on several hosts, through ssh or another remote shell.
//
// On each host an agent (host_agent.h) starts that host's ranks; what they print comes back through
// the remote shell. The run's secret and all orders go through the agents' stdin, so that no host's
// list of processes shows them. Ranks start when every host is ready: one that cannot be reached,
// lacks the program or has too few GPUs ends the run before it begins.
#pragma once

#include "executor/process/launcher.h"

namespace zeroplan {

// Launches the ranks of options.hosts. Each agent works in this process's folder (which has to be
// there on every host) with the variables NCCL_*, UCX_*, ZEROPLAN_*, MASTER_PORT and
// LD_LIBRARY_PATH as they are here. Rank 0 is the first host's first; its address is that host's
// name without the user, or MASTER_ADDR. Its stdout is ours; all else goes to stderr, lines of a
// host that no rank printed after "node2: ". A remote shell that ends by itself counts as a failure
// of its host.
LaunchEnd LaunchOnHosts(const LaunchOptions& options);

}  // namespace zeroplan
