// zeroplan doctor --hosts: whether hosts that are to train together reach one another, by which
// interfaces, how fast, and the variables to set for NCCL.
//
// A process on each host, started through ssh, examines its host and probes the others
// (host_agent.cc). It reads orders from its stdin, a JSON text a line, and answers each by one on
// its stdout, with the prefix kHostAnswerMark. It ends when its stdin closes.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/doctor/checks.h"
#include "cli/doctor/facts.h"
#include "machine/network_state.h"
#include "machine/tcp_probe.h"

namespace zeroplan {

// Ports that are tried in addition to a free one, unless --ports sets others: the default
// MASTER_PORT of DeepSpeed and PyTorch, and zeroplan's own (docs/multi-gpu.md).
inline constexpr int kTriedPorts[] = {29500, 29610};

// A host's own facts.
struct HostFacts {
  std::string zeroplan;     // version
  std::string why_not;      // the reason why its executor does not report its libraries; else ""
  LibraryFacts libraries;   // its executor's
  std::string driver;       // NVIDIA's; "": unknown
  std::string driver_note;  // the reason if it is unknown
  int gpus = 0;             // visible to its driver
  NetworkState network;
  bool verbs_library = false;
  std::vector<std::string> own_addresses;  // addresses of its own name, as resolved there
  std::vector<ProbePort> ports;            // ports at which it listens; the first is free there
};

struct HostReport {
  std::string name;     // as given: "user@node1"
  std::string address;  // its address for others: without the user
  std::string why;      // the reason if it does not answer; else ""
  std::string fix;
  HostFacts facts;
  // Its clock minus this process's, and the error bound. Set if it answers.
  double clock_ahead_seconds = 0, clock_error_seconds = 0;

  bool answers() const { return why.empty(); }
};

// One host's route to another.
struct HostLink {
  size_t from = 0, to = 0;     // indices into HostsFacts::hosts
  std::string address;         // the other's name as resolved here; "": it cannot be resolved
  std::string why;             // the reason if it cannot
  std::optional<Route> route;  // nullopt: unknown
  // in the order of the other's HostFacts::ports; those with port 0 were not tried
  std::vector<ProbeReach> ports;
  bool tried = false;  // it answered the order to probe
};

struct HostPair {
  size_t from = 0, to = 0;
  LinkSpeed speed;
};

struct HostsFacts {
  std::vector<HostReport> hosts;
  std::vector<HostLink> links;
  std::vector<HostPair> pairs;  // at most one for each two hosts
  double wait_seconds = 3;      // limit for a port's answer
};

struct HostsQuery {
  std::vector<std::string> hosts;  // in ssh's spelling
  // The command that, followed by a host and one argument for its shell, runs the argument there.
  std::vector<std::string> remote_shell;
  std::string program;     // zeroplan on the other hosts
  std::vector<int> ports;  // ports to try in addition to a free one
  double wait_seconds = 3;
};

// "a,b:8,[fd00::1]:8": the hosts, without the counts of GPUs. Throws Error(kUsage) naming `option`
// for fewer than two hosts, one named twice, and text that is no host's name.
std::vector<std::string> HostNames(const std::string& text, const std::string& option);
// The same from a file with a host in each line's first word, as DeepSpeed and Open MPI use.
std::vector<std::string> HostNamesInFile(const std::string& path);

// Queries all hosts. Never throws for a problem with one. REQUIRES: this process has no other
// threads.
HostsFacts QueryHosts(const HostsQuery& query);

// The process on each host.
inline constexpr const char* kHostAgentCommand = "doctor-agent";
inline constexpr std::string_view kHostAnswerMark = "\x01zeroplan ";
void RunHostProbe();

// Pure functions of the facts.

// A variable of NCCL or Gloo.
struct AdvisedVariable {
  std::string name, value;
  std::string host;  // "": the same on all hosts
  std::string reason;
};
std::vector<AdvisedVariable> AdvisedVariables(const HostsFacts& facts);
std::vector<Finding> HostsFindings(const HostsFacts& facts);
// Findings about interfaces and RDMA devices. REQUIRES: a host answers.
std::vector<Finding> NetworkFindings(const HostsFacts& facts);
std::string HostsText(const HostsFacts& facts, bool all);
// Schema zeroplan.doctor-hosts/1 (docs/metrics.md).
std::string HostsJson(const HostsFacts& facts);

// Helpers for texts. Answering: the hosts that answer.
std::vector<size_t> Answering(const HostsFacts& facts);
// Null: the host has no interface of that name.
const NetworkInterface* InterfaceNamed(const HostFacts& facts, const std::string& name);
// Interfaces that carry a host's traffic to the others.
std::vector<std::string> CarriersOf(const HostsFacts& facts, size_t host);
// "100 Gb/s".
std::string GigabitsText(double gigabits);
// The text if it is the same for all hosts that answer, or each host's own: "node1 eth0, node2
// ens3".
std::string ByHost(const HostsFacts& facts, const std::function<std::string(size_t)>& of);

// JSON of orders and answers.
using WireJson = nlohmann::json;
WireJson HostFactsToWire(const HostFacts& facts);
// Throws nlohmann::json::exception.
HostFacts HostFactsFromWire(const WireJson& wire);

}  // namespace zeroplan
