// The hosts of a run that zeroplan starts itself, and how many ranks each has.
#pragma once

#include <string>
#include <vector>

namespace zeroplan {

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

}  // namespace zeroplan
