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

// The hosts of a run that zeroplan starts itself, and the number of ranks on each.

struct HostShare {
  std::string name;  // a name for ssh: "node1", "user@node1", "10.0.0.7", "fe80::1"
  int ranks = 0;     // at least 1

  // The host without the user: its address for the other hosts.
  std::string address() const;
  friend bool operator==(const HostShare&, const HostShare&) = default;
};

// Parses "node1:8,node2:8"; an IPv6 address is in brackets, "[fe80::1]:8". Throws Error(kUsage)
// naming `option` for an empty list, a host without a count or named twice, and for text that is no
// host's name.
std::vector<HostShare> ParseHosts(const std::string& text, const std::string& option);

// Reads a file with a line "node1 slots=8" for each host, as DeepSpeed and Open MPI use; "#" begins
// a comment. Throws Error(kUsage) naming file and line.
std::vector<HostShare> ReadHostFile(const std::string& path);

// The number of ranks on all hosts.
int RanksOf(const std::vector<HostShare>& hosts);

// This host's part of a run that zeroplan started on several hosts (host_launcher.h).
struct HostPart {
  int first_rank = 0;   // first rank on this host
  int world_size = 0;   // ranks on all hosts
  std::string address;  // rank 0's host, for the others
  int port = 0;         // the port at which rank 0 listens
  std::string secret;   // the run's secret
  UniqueFd listener;    // on rank 0's host: a socket that listens at `port`
  // A descriptor from which stop signals are read, a line each ("stop 2"). When it closes, the
  // ranks are ended, because nobody is left who could stop them.
  int orders = -1;
};

// The hosts on which to start a run, with or without this one.
struct RemoteHosts {
  std::vector<HostShare> hosts;
  // The command that, followed by a host's name and one argument for its shell, runs the argument
  // there.
  std::vector<std::string> remote_shell;
  // Limit for all hosts to be ready: programs started, GPUs counted.
  std::chrono::milliseconds start_limit{120'000};
};

struct LaunchOptions {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;  // every rank's, beginning with the program's name
  int ranks = 2;
  // Environment of every rank, in addition to this process's and to the variables of its place.
  std::vector<std::pair<std::string, std::string>> environment;
  // From the first rank's failure until the others get SIGTERM, and from that until SIGKILL; a
  // stopped rank (SIGSTOP) gets SIGKILL kill_after after the failure.
  std::chrono::milliseconds patience{30'000};
  std::chrono::milliseconds kill_after{5'000};
  // From the first rank's failure until it is decided which rank failed first.
  std::chrono::milliseconds settle_after{500};
  HostPart* part = nullptr;  // null: the ranks are the whole run
  // Ranks on other hosts: `ranks` counts all of them, and `program` is the path there too.
  std::optional<RemoteHosts> hosts;
};

struct LaunchEnd {
  int exit_code = 0;     // see Launch
  std::string failure;   // "rank 2 was killed by signal 9 (Killed)"; "" if no rank failed
  bool killed = false;   // that rank was killed by a signal
  bool stopped = false;  // a stop signal came
  bool started = true;   // false: a host was not ready, and no rank ran
};

// "was killed by signal 9 (Killed)" for a process with that wait status.
std::string HowEnded(int status);

// Runs the ranks with ZEROPLAN_RANK and so on in their environment (launch_environment.h) and a
// listening socket for rank 0. Rank 0 has this process's stdin, stdout and stderr; the others'
// output goes to stderr, with "rank 3: " before each line; equal last words ("zeroplan: ...") of
// several ranks are printed once. Passes SIGINT and SIGTERM on in a way that
// core/base/stop_signals.h distinguishes from a second Ctrl-C. The ranks die with this
// process.
//
// The exit code is 0 if all ranks' are, 130 if they were interrupted, else the first failed rank's
// exit code (kRuntime if a signal killed it, with a line about it), or 128 + signal if an impatient
// user ended them by a second signal. Throws Error(kRuntime) if a rank cannot be started, and kills
// those that were. With `part`, rank 0 has no stdin, and the failed rank is not printed, because
// the caller reports it. REQUIRES: other threads block SIGINT and SIGTERM (stop_signals.h); this
// one blocks them and SIGCHLD during the call.
LaunchEnd Launch(const LaunchOptions& options);

// A run that continues by itself: failed ranks are started again and resume.

// In the ranks' environment: the number of earlier starts. Set, even to 0, by LaunchWithRestarts
// only: a process that has it is one of its ranks.
inline constexpr const char* kRestartVariable = "ZEROPLAN_RESTART";

struct RestartOptions {
  int restarts = 0;  // the maximum
  // The place at which ranks that start now would resume: "step 40".
  std::function<std::string()> where;
};

// Launches as Launch does. If ranks end with kRuntime or are killed, and no stop was requested,
// starts all again with --resume added to their arguments, and prints the reason and the place
// where they resume. Other ends are for the user to fix: bad usage, no room, divergence, a stop.
// Returns the last exit code.
int LaunchWithRestarts(LaunchOptions options, const RestartOptions& restarts);

}  // namespace zeroplan
