// Starts the ranks of a run on this host, one process each, and watches them to their end.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/files.h"

namespace zeroplan {

// The hosts of a run that zeroplan starts itself, and how many ranks each has.

struct HostShare {
  std::string name;  // as ssh takes it: "node1", "user@node1", "10.0.0.7", "fe80::1"
  int ranks = 0;     // at least 1

  // The host without the user: where the other hosts reach it.
  std::string address() const;
  friend bool operator==(const HostShare&, const HostShare&) = default;
};

// "node1:8,node2:8"; an IPv6 address stands in brackets, "[fe80::1]:8". Throws Error(kUsage) naming
// `option` for an empty list, a host without a count or named twice, and for what is no host's
// name.
std::vector<HostShare> ParseHosts(const std::string& text, const std::string& option);

// A file with a line "node1 slots=8" for each host, as DeepSpeed and Open MPI take it; "#" begins a
// comment. Throws Error(kUsage) naming file and line.
std::vector<HostShare> ReadHostFile(const std::string& path);

// Ranks of all hosts.
int RanksOf(const std::vector<HostShare>& hosts);

// This host's part of a run that zeroplan started on several hosts (host_launcher.h).
struct HostPart {
  int first_rank = 0;   // of this host
  int world_size = 0;   // ranks of all hosts
  std::string address;  // of rank 0's host, for the others
  int port = 0;         // where rank 0 listens
  std::string secret;   // of the run
  UniqueFd listener;    // rank 0's host: listens there
  // Where stop signals are read from, a line each ("stop 2"). When it closes, the ranks are ended:
  // nobody is left who could stop them.
  int orders = -1;
};

// Hosts that a run is started on, this one among them or not.
struct RemoteHosts {
  std::vector<HostShare> hosts;
  // Followed by a host's name and one argument for its shell, it runs that there.
  std::vector<std::string> remote_shell;
  // For all hosts to be ready: their programs started, their GPUs counted.
  std::chrono::milliseconds start_limit{120'000};
};

struct LaunchOptions {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  // of every rank, the program's name first
  int ranks = 2;
  // Environment of every rank, besides this process's and what tells a rank its place.
  std::vector<std::pair<std::string, std::string>> environment;
  // From the first rank's failure until the others get SIGTERM, and from that until SIGKILL; one
  // that is stopped (SIGSTOP) gets that kill_after after the failure.
  std::chrono::milliseconds patience{30'000};
  std::chrono::milliseconds kill_after{5'000};
  // From the first rank's failure until who failed first is settled.
  std::chrono::milliseconds settle_after{500};
  HostPart* part = nullptr;  // null: the ranks are the whole run
  // Ranks on other hosts: `ranks` counts all of them, and `program` is where it lies there too.
  std::optional<RemoteHosts> hosts;
};

struct LaunchEnd {
  int exit_code = 0;     // see Launch
  std::string failure;   // "rank 2 was killed by signal 9 (Killed)"; "" if no rank failed
  bool killed = false;   // that rank, by a signal
  bool stopped = false;  // a stop signal came
  bool started = true;   // false: a host was not ready, and no rank ran
};

// "was killed by signal 9 (Killed)" of a process with that wait status.
std::string HowEnded(int status);

// Runs the ranks with ZEROPLAN_RANK and so on in their environment (launch_environment.h) and a
// socket for rank 0 to listen with. Rank 0 has this process's stdin, stdout and stderr; what the
// others print goes to stderr, each line after "rank 3: ", and last words ("zeroplan: ...") that
// several of them say once. SIGINT and SIGTERM are passed on in a
// way that executor/process/stop_signals.h knows from a second Ctrl-C. The ranks die with this
// process.
//
// The exit code is 0 if that of all ranks is, 130 if they were interrupted, else the first failed
// rank's exit code (kRuntime if a signal killed it, with a line that says so), or 128 + signal if
// an impatient user ended them by a second signal. Throws Error(kRuntime) if a rank cannot be
// started; those that were are killed. With `part`, rank 0 has no stdin, and who failed is not
// printed: the caller passes it on. REQUIRES: other threads block SIGINT and SIGTERM
// (stop_signals.h); meanwhile this one does, and SIGCHLD.
LaunchEnd Launch(const LaunchOptions& options);

// A run that goes on by itself: ranks that failed are started again and resume.

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
