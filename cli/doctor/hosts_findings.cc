// What zeroplan doctor --hosts says of what it found.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/doctor/hosts.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "machine/gpu_state.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

constexpr size_t kLinksNamed = 12;
constexpr double kClockSeconds = 5;  // as ranks have it when they meet (docs/multi-gpu.md)

// The interface that has an address; null: none of this host's.
const NetworkInterface* InterfaceWith(const HostFacts& facts, const std::string& address) {
  for (const NetworkInterface& interface : facts.network.interfaces) {
    if (std::count(interface.addresses.begin(), interface.addresses.end(), address) > 0) {
      return &interface;
    }
  }
  return nullptr;
}

bool IsLoopbackAddress(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

bool ReachesAny(const HostLink& link) {
  return std::any_of(link.ports.begin(), link.ports.end(), [](const ProbeReach& reach) {
    return reach.state == ProbeReach::State::kReached;
  });
}

// ---- hosts, names and ports ----

std::vector<Finding> HostFindings(const HostsFacts& facts) {
  std::vector<Finding> findings;
  for (const HostReport& host : facts.hosts) {
    if (host.answers()) continue;
    findings.push_back({"hosts", CheckState::kMissing,
                        fmt::format("{} does not answer: {}", host.name, host.why),
                        "nothing is known of it, and what starts ranks by ssh (train --hosts, "
                        "mpirun, DeepSpeed) may not reach it either",
                        host.fix});
  }
  if (findings.empty()) {
    findings.push_back(
        {"hosts", CheckState::kOk, fmt::format("all {} answer", facts.hosts.size())});
  }
  return findings;
}

// "node1 (eth0, 10.0.0.1)".
std::string FromText(const HostsFacts& facts, const HostLink& link) {
  const std::string& name = facts.hosts[link.from].name;
  if (!link.route) return name + " (interface not known)";
  if (link.route->source.empty()) return fmt::format("{} ({})", name, link.route->interface);
  return fmt::format("{} ({}, {})", name, link.route->interface, link.route->source);
}

// "node2 (eth1, 10.0.0.2)".
std::string ToText(const HostsFacts& facts, const HostLink& link) {
  const HostReport& to = facts.hosts[link.to];
  const NetworkInterface* interface = InterfaceWith(to.facts, link.address);
  return fmt::format("{} ({}{})", to.name, interface == nullptr ? "" : interface->name + ", ",
                     link.address);
}

// What a name stands for where another host asks; nothing where it is the right one.
std::optional<Finding> NameFinding(const HostsFacts& facts, const HostLink& link) {
  const std::string& from = facts.hosts[link.from].name;
  const HostReport& to = facts.hosts[link.to];
  const std::string fix = fmt::format(
      "{}'s line in /etc/hosts (or DNS) of {}, or its address in --hosts", to.address, from);
  if (link.address.empty()) {
    return Finding{"names", CheckState::kMissing,
                   fmt::format("{} does not know {}: {}", from, to.address, link.why), "", fix};
  }
  for (const ProbeReach& reach : link.ports) {
    if (reach.state != ProbeReach::State::kOther || reach.other >= facts.hosts.size()) continue;
    return Finding{"names", CheckState::kMissing,
                   fmt::format("at {}, {} stands for {}, where {} answers", from, to.address,
                               link.address, facts.hosts[reach.other].name),
                   "", fix};
  }
  if (IsLoopbackAddress(link.address) && !ReachesAny(link)) {
    return Finding{"names", CheckState::kMissing,
                   fmt::format("at {}, {} stands for {}, which is {} itself", from, to.address,
                               link.address, from),
                   "", fix};
  }
  return std::nullopt;
}

// What is meant by a port that was asked for, of a host.
std::string PortText(const HostReport& host, const ProbePort& port) {
  if (port.asked > 0) return std::to_string(port.asked);
  const NetworkState& network = host.facts.network;
  if (network.first_free_port == 0) return fmt::format("{} (a free one)", port.port);
  return fmt::format("{} (a free one, of {}-{})", port.port, network.first_free_port,
                     network.last_free_port);
}

// Nothing where all ports are reached.
std::optional<Finding> BlockedFinding(const HostsFacts& facts, const HostLink& link) {
  const HostReport& to = facts.hosts[link.to];
  std::vector<std::string> blocked, open;
  bool free_one = false, asked_one = false;
  for (size_t i = 0; i < link.ports.size(); ++i) {
    const ProbePort& port = to.facts.ports[i];
    if (port.port == 0) continue;  // not tried
    if (link.ports[i].state == ProbeReach::State::kReached) continue;
    (port.asked == 0 ? free_one : asked_one) = true;
    blocked.push_back(fmt::format("port {}: {}", PortText(to, port), link.ports[i].why));
    open.push_back(port.asked > 0 ? std::to_string(port.asked)
                   : to.facts.network.first_free_port == 0
                       ? std::to_string(port.port)
                       : fmt::format("{}:{}", to.facts.network.first_free_port,
                                     to.facts.network.last_free_port));
  }
  if (blocked.empty()) return std::nullopt;
  const NetworkInterface* interface = InterfaceWith(to.facts, link.address);
  std::string cost;
  if (free_one) cost = "NCCL, Gloo and ranks of train --hosts use free ports: the run hangs";
  if (asked_one) {
    cost += fmt::format("{}ranks that meet at that port (MASTER_PORT, ZEROPLAN_PORT) do not",
                        cost.empty() ? "" : "; ");
  }
  const std::string source =
      link.route && !link.route->source.empty() ? link.route->source : facts.hosts[link.from].name;
  return Finding{
      "ports", CheckState::kMissing,
      fmt::format("{} does not reach {}: {}", FromText(facts, link), ToText(facts, link),
                  fmt::join(blocked, "; ")),
      cost,
      fmt::format(
          "let TCP to these ports through on {}, and in what is between (security groups, network "
          "policies): iptables -I INPUT{} -p tcp -s {} -m multiport --dports {} -j ACCEPT",
          to.name, interface == nullptr ? "" : " -i " + interface->name, source,
          fmt::join(open, ","))};
}

std::vector<Finding> PortFindings(const HostsFacts& facts) {
  std::vector<Finding> names, blocked, unknown;
  size_t tried = 0;
  for (const HostLink& link : facts.links) {
    if (!link.tried) continue;
    ++tried;
    if (auto finding = NameFinding(facts, link)) {
      names.push_back(*std::move(finding));
    } else if (auto ports = BlockedFinding(facts, link)) {
      blocked.push_back(*std::move(ports));
    }
  }
  std::set<std::string> reached;
  for (const size_t i : Answering(facts)) {
    const HostReport& host = facts.hosts[i];
    for (const ProbePort& port : host.facts.ports) {
      if (port.port > 0) {
        reached.insert(port.asked > 0 ? std::to_string(port.asked) : "a free one");
        continue;
      }
      unknown.push_back(
          {"ports", CheckState::kUnknown,
           fmt::format("port {} of {} was not tried: {}", port.asked, host.name, port.why),
           "who listens there now may be in the way of a run",
           fmt::format("ss -ltnp 'sport = :{}' shows who it is", port.asked)});
    }
  }
  std::vector<Finding> findings;
  for (std::vector<Finding>* some : {&names, &blocked}) {
    const size_t count = some->size();
    if (count > kLinksNamed) {
      some->resize(kLinksNamed);
      some->back() = {some->front().check, CheckState::kMissing,
                      fmt::format("{} more ways from host to host", count - kLinksNamed + 1), "",
                      "--format json has all"};
    }
    findings.insert(findings.end(), some->begin(), some->end());
  }
  if (tried == 0) {
    findings.push_back({"ports", CheckState::kUnknown, "not tried: fewer than two hosts answer"});
  } else if (findings.empty()) {
    findings.push_back({"ports", CheckState::kOk,
                        fmt::format("each host reaches each other over TCP; ports tried: {}",
                                    fmt::join(reached, ", "))});
  }
  findings.insert(findings.end(), unknown.begin(), unknown.end());
  return findings;
}

// ---- versions and clocks ----

struct VersionTexts {
  const char* check;
  const char* name;
  CheckState if_they_differ;
  const char* cost;
  const char* fix;
};

// REQUIRES: a host answers. `of`: "" where it is not known. `why`: of the first that is not.
Finding VersionFinding(const HostsFacts& facts, const VersionTexts& texts,
                       const std::function<std::string(const HostFacts&)>& of,
                       const std::function<std::string(const HostFacts&)>& why) {
  std::set<std::string> versions;
  std::string unknown;
  for (const size_t i : Answering(facts)) {
    const HostReport& host = facts.hosts[i];
    versions.insert(of(host.facts));
    if (of(host.facts).empty() && unknown.empty()) {
      unknown = fmt::format("{}: {}", host.name, why(host.facts));
    }
  }
  if (versions.size() == 1 && !unknown.empty()) {
    return {texts.check, CheckState::kUnknown, fmt::format("{} ({})", texts.name, unknown)};
  }
  const std::string fact = fmt::format("{} {}", texts.name, ByHost(facts, [&](size_t i) {
                                         const std::string version = of(facts.hosts[i].facts);
                                         return version.empty() ? "not known" : version;
                                       }));
  if (versions.size() == 1) return {texts.check, CheckState::kOk, fact};
  if (!unknown.empty()) {
    return {texts.check, CheckState::kUnknown, fmt::format("{} ({})", fact, unknown), texts.cost,
            texts.fix};
  }
  return {texts.check, texts.if_they_differ, fact, texts.cost, texts.fix};
}

std::vector<Finding> VersionFindings(const HostsFacts& facts) {
  constexpr const char* kRefused = "the ranks of zeroplan train refuse to run together";
  const auto why_no_library = [](const HostFacts& host) {
    return !host.why_not.empty()  ? host.why_not
           : !host.libraries.cuda ? std::string("zeroplan was built without CUDA there")
                                  : std::string("its executor does not say");
  };
  return {
      VersionFinding(
          facts,
          {"zeroplan", "zeroplan", CheckState::kMissing, kRefused, "install one version on all"},
          [](const HostFacts& host) { return host.zeroplan; },
          [](const HostFacts&) { return std::string("it does not say"); }),
      VersionFinding(
          facts,
          {"driver", "NVIDIA's driver", CheckState::kCosts,
           "what starts on one host may be refused on another (the newest CUDA that a driver "
           "takes)",
           "install one version on all"},
          [](const HostFacts& host) { return host.driver; },
          [](const HostFacts& host) { return host.driver_note; }),
      VersionFinding(
          facts, {"cuda", "zeroplan's CUDA", CheckState::kMissing, kRefused, "one build on all"},
          [](const HostFacts& host) {
            return host.libraries.runtime == 0 ? "" : CudaVersionText(host.libraries.runtime);
          },
          why_no_library),
      VersionFinding(
          facts,
          {"nccl", "zeroplan's NCCL (PyTorch and DeepSpeed bring their own)", CheckState::kMissing,
           "ranks with different NCCLs fail, or hang, when they meet", "one version on all"},
          [](const HostFacts& host) {
            return host.libraries.nccl == 0 ? "" : LibraryVersionText(host.libraries.nccl);
          },
          why_no_library)};
}

// REQUIRES: two hosts answer.
Finding ClockFinding(const HostsFacts& facts) {
  const std::vector<size_t> hosts = Answering(facts);
  const auto ahead = [&](size_t a, size_t b) {
    return facts.hosts[a].clock_ahead_seconds < facts.hosts[b].clock_ahead_seconds;
  };
  const auto [slow, fast] = std::minmax_element(hosts.begin(), hosts.end(), ahead);
  const HostReport &behind = facts.hosts[*slow], &before = facts.hosts[*fast];
  const double apart = before.clock_ahead_seconds - behind.clock_ahead_seconds;
  const double error = before.clock_error_seconds + behind.clock_error_seconds;
  if (apart - error > kClockSeconds) {
    return {"clocks", CheckState::kCosts,
            fmt::format("{}'s is {} ahead of {}'s", before.name, FormatSeconds(apart), behind.name),
            "lines of different hosts' logs are out of order, and certificates may not be valid",
            "chrony or systemd-timesyncd on all hosts"};
  }
  return {"clocks", CheckState::kOk,
          fmt::format("{} apart, give or take {}", FormatSeconds(apart), FormatSeconds(error))};
}

Finding OwnNameFinding(const HostsFacts& facts) {
  std::vector<std::string> odd;
  for (const size_t i : Answering(facts)) {
    const HostFacts& own = facts.hosts[i].facts;
    const auto good = std::count_if(own.own_addresses.begin(), own.own_addresses.end(),
                                    [](const std::string& at) { return !IsLoopbackAddress(at); });
    if (good > 0) continue;
    odd.push_back(own.own_addresses.empty()
                      ? fmt::format("{} does not know its own name {}", facts.hosts[i].name,
                                    own.network.host_name)
                      : fmt::format("{} takes its own name {} for {}", facts.hosts[i].name,
                                    own.network.host_name, own.own_addresses.front()));
  }
  if (odd.empty()) {
    return {"own_name", CheckState::kOk, "each host knows its own name by an address of a network"};
  }
  return {"own_name", CheckState::kCosts, fmt::format("{}", fmt::join(odd, "; ")),
          "Gloo (PyTorch's groups of CPUs) gives others that address, at which they do not reach "
          "it; zeroplan and NCCL do not go by it",
          "GLOO_SOCKET_IFNAME, or the network's address for that name in /etc/hosts"};
}

// ---- how fast ----

std::string PairName(const HostsFacts& facts, const HostPair& pair) {
  return fmt::format("{} and {}", facts.hosts[pair.from].name, facts.hosts[pair.to].name);
}

std::string RateText(double bytes_per_second) {
  return FormatBytes(static_cast<uint64_t>(bytes_per_second)) + "/s";
}

std::vector<Finding> SpeedFindings(const HostsFacts& facts) {
  std::vector<Finding> findings;
  std::vector<std::pair<double, const HostPair*>> slower_way;
  for (const HostPair& pair : facts.pairs) {
    const LinkSpeed& speed = pair.speed;
    const double least = std::min(speed.bytes_per_second, speed.bytes_per_second_back);
    if (!speed.why.empty()) {
      findings.push_back({"speed", CheckState::kUnknown,
                          fmt::format("{}: not measured: {}", PairName(facts, pair), speed.why)});
    } else if (least <= 0) {
      findings.push_back(
          {"speed", CheckState::kMissing,
           fmt::format("{} connect, but no bytes came through within {:g} s", PairName(facts, pair),
                       facts.wait_seconds),
           "so it is where a packet of the interface's MTU is too large for what is between them",
           fmt::format("ping -M do -s 8972 {} (MTU 9000) and -s 1472 (1500) tell; then ip link set "
                       "dev NAME mtu 1500",
                       facts.hosts[pair.to].address)});
    } else {
      slower_way.emplace_back(least, &pair);
    }
  }
  if (slower_way.empty()) {
    if (findings.empty()) {
      findings.push_back({"speed", CheckState::kUnknown, "not measured: no pair is connected"});
    }
    return findings;
  }
  std::sort(slower_way.begin(), slower_way.end());
  const double median = slower_way[slower_way.size() / 2].first;
  constexpr double kMuchSlower = 0.7;
  const auto [least, slowest] = slower_way.front();
  const std::string fact =
      slower_way.size() == 1
          ? fmt::format("{}, the slower way", RateText(least))
          : fmt::format("{} to {}, the slower way of each pair; the slowest: {}", RateText(least),
                        RateText(slower_way.back().first), PairName(facts, *slowest));
  if (slower_way.size() > 2 && least < kMuchSlower * median) {
    findings.push_back({"speed", CheckState::kCosts,
                        fmt::format("{} of a median of {}", fact, RateText(median)),
                        "collectives over all hosts are as fast as the slowest of them",
                        "ethtool NAME shows the link's speed, ethtool -S its errors"});
  } else {
    findings.push_back({"speed", CheckState::kOk, fact});
  }
  return findings;
}

}  // namespace

std::vector<Finding> HostsFindings(const HostsFacts& facts) {
  std::vector<Finding> findings = HostFindings(facts);
  const auto add = [&](std::vector<Finding> more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  const size_t answering = Answering(facts).size();
  if (answering == 0) return findings;
  add(PortFindings(facts));
  add(NetworkFindings(facts));
  add({OwnNameFinding(facts)});
  if (answering > 1) add(SpeedFindings(facts));
  add(VersionFindings(facts));
  if (answering > 1) add({ClockFinding(facts)});
  return findings;
}

}  // namespace zeroplan
