// zeroplan doctor --hosts: whether hosts that are to train together reach one another, by what, how
// fast, and what NCCL has to be told.
//
// A process on each host, started through ssh, looks at its host and probes the others
// (host_agent.cc). It reads orders from its stdin, a JSON text a line, and answers each by one on
// its stdout, behind kHostAnswerMark. It ends with its stdin.
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

// Ports that are tried besides one that is free, unless --ports says others: MASTER_PORT of
// DeepSpeed and PyTorch where nothing is said, and zeroplan's own (docs/multi-gpu.md).
inline constexpr int kTriedPorts[] = {29500, 29610};

// What a host says of itself.
struct HostFacts {
  std::string zeroplan;     // version
  std::string why_not;      // its executor does not say its libraries: why; else ""
  LibraryFacts libraries;   // of its executor
  std::string driver;       // NVIDIA's; "": not known
  std::string driver_note;  // then: why
  int gpus = 0;             // that its driver shows
  NetworkState network;
  bool verbs_library = false;
  std::vector<std::string> own_addresses;  // that its own name stands for there
  std::vector<ProbePort> ports;            // where it listens; the first is free there
};

struct HostReport {
  std::string name;     // as it was given: "user@node1"
  std::string address;  // where others reach it: without the user
  std::string why;      // it does not answer: why; else ""
  std::string fix;
  HostFacts facts;
  // Its clock less this process's, and how far that may be off. Of what answers.
  double clock_ahead_seconds = 0, clock_error_seconds = 0;

  bool answers() const { return why.empty(); }
};

// One host's way to another.
struct HostLink {
  size_t from = 0, to = 0;        // of HostsFacts::hosts
  std::string address;            // what the other's name stands for here; "": nothing
  std::string why;                // then
  std::optional<Route> route;     // nullopt: not known
  std::vector<ProbeReach> ports;  // as HostFacts::ports of the other; those with port 0 not tried
  bool tried = false;             // it answered the order to try
};

struct HostPair {
  size_t from = 0, to = 0;
  LinkSpeed speed;
};

struct HostsFacts {
  std::vector<HostReport> hosts;
  std::vector<HostLink> links;
  std::vector<HostPair> pairs;  // at most one of two hosts
  double wait_seconds = 3;      // for a port's answer
};

struct HostsQuery {
  std::vector<std::string> hosts;  // as ssh takes them
  // Followed by a host and one argument for its shell, it runs that there.
  std::vector<std::string> remote_shell;
  std::string program;     // zeroplan on the other hosts
  std::vector<int> ports;  // to be tried besides a free one
  double wait_seconds = 3;
};

// "a,b:8,[fd00::1]:8": the hosts, counts of GPUs left out. Throws Error(kUsage) naming `option` for
// fewer than two, one named twice, and what is no host's name.
std::vector<std::string> HostNames(const std::string& text, const std::string& option);
// The same of a file with a host in each line's first word, as DeepSpeed and Open MPI have it.
std::vector<std::string> HostNamesInFile(const std::string& path);

// Asks all hosts. Never throws for what is wrong with one. REQUIRES: this process has no other
// threads.
HostsFacts QueryHosts(const HostsQuery& query);

// The process on each host.
inline constexpr const char* kHostAgentCommand = "doctor-agent";
inline constexpr std::string_view kHostAnswerMark = "\x01zeroplan ";
void RunHostProbe();

// Pure functions of the facts.

// A variable that NCCL, or Gloo, reads.
struct AdvisedVariable {
  std::string name, value;
  std::string host;  // "": the same on all
  std::string reason;
};
std::vector<AdvisedVariable> AdvisedVariables(const HostsFacts& facts);
std::vector<Finding> HostsFindings(const HostsFacts& facts);
// Those of interfaces and RDMA devices. REQUIRES: a host answers.
std::vector<Finding> NetworkFindings(const HostsFacts& facts);
std::string HostsText(const HostsFacts& facts);
// Schema zeroplan.doctor-hosts/1 (docs/metrics.md).
std::string HostsJson(const HostsFacts& facts);

// Parts that texts are made of.
std::vector<size_t> Answering(const HostsFacts& facts);
// Null: the host has none of that name.
const NetworkInterface* InterfaceNamed(const HostFacts& facts, const std::string& name);
// Interfaces that carry what a host sends to the others.
std::vector<std::string> CarriersOf(const HostsFacts& facts, size_t host);
// "100 Gb/s".
std::string GigabitsText(double gigabits);
// The same text of all hosts that answer, or each with its own: "node1 eth0, node2 ens3".
std::string ByHost(const HostsFacts& facts, const std::function<std::string(size_t)>& of);

// What orders and answers are made of.
using WireJson = nlohmann::json;
WireJson HostFactsToWire(const HostFacts& facts);
// Throws nlohmann::json::exception.
HostFacts HostFactsFromWire(const WireJson& wire);

}  // namespace zeroplan
