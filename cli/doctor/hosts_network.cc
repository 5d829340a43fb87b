// How the hosts of zeroplan doctor --hosts are connected, and which variables follow from it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/doctor/hosts.h"

namespace zeroplan {

std::vector<size_t> Answering(const HostsFacts& facts) {
  std::vector<size_t> answering;
  for (size_t i = 0; i < facts.hosts.size(); ++i) {
    if (facts.hosts[i].answers()) answering.push_back(i);
  }
  return answering;
}

const NetworkInterface* InterfaceNamed(const HostFacts& facts, const std::string& name) {
  for (const NetworkInterface& interface : facts.network.interfaces) {
    if (interface.name == name) return &interface;
  }
  return nullptr;
}

std::vector<std::string> CarriersOf(const HostsFacts& facts, size_t host) {
  std::set<std::string> names;
  for (const HostLink& link : facts.links) {
    if (link.from == host && link.route) names.insert(link.route->interface);
  }
  return {names.begin(), names.end()};
}

std::string GigabitsText(double gigabits) { return fmt::format("{:g} Gb/s", gigabits); }

std::string ByHost(const HostsFacts& facts, const std::function<std::string(size_t)>& of) {
  const std::vector<size_t> hosts = Answering(facts);
  std::vector<std::string> each;
  std::set<std::string> different;
  for (const size_t i : hosts) {
    different.insert(of(i));
    each.push_back(fmt::format("{} {}", facts.hosts[i].name, of(i)));
  }
  if (different.size() == 1) return *different.begin() + " on all hosts";
  return fmt::format("{}", fmt::join(each, ", "));
}

namespace {

// ---- interfaces ----

// An interface that is up, has an address and is more than twice as fast as what carries the
// traffic; null: none is known.
const NetworkInterface* FasterOne(const HostsFacts& facts, size_t host) {
  const HostFacts& own = facts.hosts[host].facts;
  int64_t used = 0;
  for (const std::string& name : CarriersOf(facts, host)) {
    const NetworkInterface* carrier = InterfaceNamed(own, name);
    if (carrier != nullptr) used = std::max(used, carrier->megabits);
  }
  const NetworkInterface* best = nullptr;
  for (const NetworkInterface& other : own.network.interfaces) {
    const bool ready = other.up && !other.addresses.empty() && !other.loopback;
    if (!ready || used == 0 || other.megabits <= 2 * used) continue;
    if (best == nullptr || other.megabits > best->megabits) best = &other;
  }
  return best;
}

Finding RouteFinding(const HostsFacts& facts) {
  const std::vector<size_t> hosts = Answering(facts);
  const auto carriers = [&](size_t i) {
    const std::vector<std::string> names = CarriersOf(facts, i);
    return names.empty() ? "not known" : fmt::format("{}", fmt::join(names, " and "));
  };
  const bool known = std::any_of(hosts.begin(), hosts.end(),
                                 [&](size_t i) { return !CarriersOf(facts, i).empty(); });
  if (!known) return {"interface", CheckState::kUnknown, "the kernels name no route"};
  const std::string fact = ByHost(facts, carriers);
  std::vector<std::string> faster;
  for (const size_t i : hosts) {
    const NetworkInterface* other = FasterOne(facts, i);
    if (other == nullptr) continue;
    faster.push_back(fmt::format("{} has {} of {}", facts.hosts[i].name, other->name,
                                 GigabitsText(static_cast<double>(other->megabits) / 1000)));
  }
  if (faster.empty() || faster.size() < hosts.size()) return {"interface", CheckState::kOk, fact};
  return {"interface", CheckState::kCosts, fmt::format("{}; but {}", fact, fmt::join(faster, ", ")),
          "what goes over sockets takes the slower one (that the faster ones reach one another was "
          "not tried)",
          "name the hosts by their addresses there, and try again"};
}

Finding MtuFinding(const HostsFacts& facts) {
  std::set<int> sizes;
  const auto mtu = [&](size_t i) -> std::string {
    std::vector<std::string> parts;
    for (const std::string& name : CarriersOf(facts, i)) {
      const NetworkInterface* interface = InterfaceNamed(facts.hosts[i].facts, name);
      if (interface == nullptr || interface->mtu == 0) continue;
      sizes.insert(interface->mtu);
      parts.push_back(std::to_string(interface->mtu));
    }
    return parts.empty() ? "not known" : fmt::format("{}", fmt::join(parts, " and "));
  };
  const std::string fact = ByHost(facts, mtu);
  if (sizes.empty()) return {"mtu", CheckState::kUnknown, "the kernels do not say"};
  if (sizes.size() == 1) return {"mtu", CheckState::kOk, fact};
  return {"mtu", CheckState::kCosts, fact,
          "large packets are cut, or lost where a switch drops them without a word: connections "
          "are made and then stand still",
          fmt::format("the same on all: ip link set dev NAME mtu {}", *sizes.begin())};
}

// ---- InfiniBand and RoCE ----

bool IsReady(const HostFacts& facts, const RdmaPort& port) {
  return port.state == "ACTIVE" && port.usable && facts.verbs_library;
}

// The fastest ready ports of a host with that link layer.
std::vector<const RdmaPort*> FastestPorts(const HostFacts& facts, std::string_view layer) {
  std::vector<const RdmaPort*> ports;
  double best = 0;
  for (const RdmaPort& port : facts.network.rdma) {
    if (IsReady(facts, port) && port.link_layer == layer) best = std::max(best, port.gigabits);
  }
  for (const RdmaPort& port : facts.network.rdma) {
    if (!IsReady(facts, port) || port.link_layer != layer || port.gigabits < best) continue;
    ports.push_back(&port);
  }
  return ports;
}

// What all hosts have in common.
enum class Fabric : uint8_t {
  kInfiniBand,
  kRoce,
  kNone,     // no host has a device that could do it
  kPartial,  // some hosts have, some have not
  kUnknown   // devices that NCCL needs a plugin for (AWS's EFA)
};
constexpr const char* kInfiniBandLayer = "InfiniBand";
constexpr const char* kRoceLayer = "Ethernet";

Fabric FabricOf(const HostsFacts& facts) {
  const std::vector<size_t> hosts = Answering(facts);
  const auto all = [&](const char* layer) {
    return std::all_of(hosts.begin(), hosts.end(), [&](size_t i) {
      return !FastestPorts(facts.hosts[i].facts, layer).empty();
    });
  };
  if (hosts.empty()) return Fabric::kUnknown;
  if (all(kInfiniBandLayer)) return Fabric::kInfiniBand;
  if (all(kRoceLayer)) return Fabric::kRoce;
  bool any = false;
  for (const size_t i : hosts) {
    for (const RdmaPort& port : facts.hosts[i].facts.network.rdma) {
      if (port.link_layer != kInfiniBandLayer && port.link_layer != kRoceLayer) {
        return Fabric::kUnknown;
      }
      any = any || IsReady(facts.hosts[i].facts, port);
    }
  }
  return any ? Fabric::kPartial : Fabric::kNone;
}

// The index of RoCE v2's GID that all ports to be used have; -1: there is none.
int CommonGid(const HostsFacts& facts) {
  std::set<int> gids;
  for (const size_t i : Answering(facts)) {
    for (const RdmaPort* port : FastestPorts(facts.hosts[i].facts, kRoceLayer)) {
      gids.insert(port->roce_v2_gid);
    }
  }
  return gids.size() == 1 ? *gids.begin() : -1;
}

// "8 x 400 Gb/s (mlx5_0, mlx5_1, ...)".
std::string PortsText(const std::vector<const RdmaPort*>& ports) {
  std::vector<std::string> names;
  names.reserve(ports.size());
  for (const RdmaPort* port : ports) names.push_back(port->device);
  return fmt::format("{} x {} ({})", ports.size(), GigabitsText(ports.front()->gigabits),
                     fmt::join(names, ", "));
}

// Why a host's devices are of no use; "" where it has none that is not ready.
std::string WhyNotReady(const HostFacts& facts) {
  std::vector<std::string> parts;
  for (const RdmaPort& port : facts.network.rdma) {
    if (IsReady(facts, port)) continue;
    parts.push_back(fmt::format(
        "{} {}", port.device,
        port.state != "ACTIVE" ? "is " + (port.state.empty() ? "in no known state" : port.state)
        : !port.usable         ? "has no node below /dev/infiniband"
                               : "has no libibverbs to use it"));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

Finding RdmaFinding(const HostsFacts& facts) {
  const std::vector<size_t> hosts = Answering(facts);
  std::string not_ready;
  for (const size_t i : hosts) {
    const std::string why = WhyNotReady(facts.hosts[i].facts);
    if (why.empty()) continue;
    not_ready += fmt::format("{}{}: {}", not_ready.empty() ? "" : "; ", facts.hosts[i].name, why);
  }
  constexpr const char* kFix =
      "containers: --device /dev/infiniband --cap-add IPC_LOCK; Kubernetes: an RDMA device plugin; "
      "libibverbs1 and rdma-core; ibstat for what is down";
  const Fabric fabric = FabricOf(facts);
  if (fabric == Fabric::kInfiniBand || fabric == Fabric::kRoce) {
    const char* layer = fabric == Fabric::kRoce ? kRoceLayer : kInfiniBandLayer;
    const std::string fact = fmt::format(
        "{}: {}", fabric == Fabric::kRoce ? "RoCE" : "InfiniBand", ByHost(facts, [&](size_t i) {
          return PortsText(FastestPorts(facts.hosts[i].facts, layer));
        }));
    std::string untried = "that they reach one another was not tried: ib_write_bw does";
    if (fabric == Fabric::kRoce && CommonGid(facts) < 0) {
      untried +=
          "; an index of RoCE v2's GID that all ports share is not known, so that NCCL has to "
          "find them (2.21 and newer do)";
    }
    if (not_ready.empty()) return {"infiniband", CheckState::kOk, fact, untried};
    return {"infiniband", CheckState::kOk, fmt::format("{}; not used: {}", fact, not_ready),
            untried};
  }
  if (fabric == Fabric::kUnknown) {
    return {"infiniband", CheckState::kUnknown,
            "devices that are neither InfiniBand nor RoCE (as AWS's EFA)",
            "NCCL reaches them by a plugin (aws-ofi-nccl), which is not looked for"};
  }
  if (fabric == Fabric::kPartial) {
    const std::string fact = ByHost(facts, [&](size_t i) -> std::string {
      const HostFacts& own = facts.hosts[i].facts;
      for (const char* layer : {kInfiniBandLayer, kRoceLayer}) {
        const auto ports = FastestPorts(own, layer);
        if (!ports.empty()) {
          return fmt::format("{} {}", layer == kRoceLayer ? "RoCE" : layer, PortsText(ports));
        }
      }
      const std::string why = WhyNotReady(own);
      return why.empty() ? "none" : "none (" + why + ")";
    });
    return {"infiniband", CheckState::kCosts, fact,
            "a run needs the same on all hosts: these have sockets alone in common", kFix};
  }
  if (not_ready.empty()) {
    return {"infiniband", CheckState::kOk,
            "none: no host has an InfiniBand or RoCE device, and NCCL uses sockets"};
  }
  return {"infiniband", CheckState::kCosts, "sockets alone; " + not_ready,
          "NCCL uses TCP sockets, which take processors and are slower", kFix};
}

// ---- variables ----

// Values by host as variables: one where all are the same.
void Advise(const HostsFacts& facts, const char* name, const std::map<size_t, std::string>& values,
            const std::string& reason, std::vector<AdvisedVariable>& advised) {
  std::set<std::string> different;
  for (const auto& [host, value] : values) different.insert(value);
  if (different.size() == 1) {
    advised.push_back({name, *different.begin(), "", reason});
    return;
  }
  for (const auto& [host, value] : values) {
    advised.push_back({name, value, facts.hosts[host].name, reason});
  }
}

// NCCL takes names as what others begin with, unless "=" stands before them.
bool BeginsAnother(const std::vector<std::string>& chosen, const std::vector<std::string>& all) {
  for (const std::string& name : chosen) {
    for (const std::string& other : all) {
      const bool is_chosen = std::count(chosen.begin(), chosen.end(), other) > 0;
      if (!is_chosen && other.starts_with(name)) return true;
    }
  }
  return false;
}

void AdviseInterface(const HostsFacts& facts, std::vector<AdvisedVariable>& advised) {
  std::map<size_t, std::vector<std::string>> carriers;
  std::set<std::string> others;  // that NCCL might take
  bool exact = false;
  for (const size_t i : Answering(facts)) {
    const std::vector<std::string> chosen = CarriersOf(facts, i);
    if (chosen.empty()) continue;
    std::vector<std::string> all;
    for (const NetworkInterface& interface : facts.hosts[i].facts.network.interfaces) {
      all.push_back(interface.name);
      const bool is_chosen = std::count(chosen.begin(), chosen.end(), interface.name) > 0;
      const bool passed_over = interface.loopback || interface.name.starts_with("docker");
      if (!is_chosen && !passed_over && interface.up && !interface.addresses.empty()) {
        others.insert(interface.name);
      }
    }
    exact = exact || BeginsAnother(chosen, all);
    carriers[i] = chosen;
  }
  if (carriers.empty()) return;
  std::map<size_t, std::string> nccl, gloo;
  for (const auto& [host, names] : carriers) {
    nccl[host] = fmt::format("{}{}", exact ? "=" : "", fmt::join(names, ","));
    if (names.size() == 1) gloo[host] = names.front();  // it takes one
  }
  const std::string reason =
      others.empty()
          ? "what the kernel's route between the hosts takes, and the only one with an address"
          : fmt::format(
                "what the kernel's route between the hosts takes; else NCCL may also take "
                "{}",
                fmt::join(others, ", "));
  Advise(facts, "NCCL_SOCKET_IFNAME", nccl, reason, advised);
  if (gloo.size() < carriers.size()) return;
  Advise(facts, "GLOO_SOCKET_IFNAME", gloo,
         "the same for PyTorch's groups of CPUs, which else go by a host's own name", advised);
}

// "mlx5_0,mlx5_1:2", of a host that has other devices too.
std::string HcaText(const HostFacts& facts, const std::vector<const RdmaPort*>& ports) {
  std::vector<std::string> chosen, all, texts;
  for (const RdmaPort* port : ports) chosen.push_back(port->device);
  for (const RdmaPort& port : facts.network.rdma) all.push_back(port.device);
  for (const RdmaPort* port : ports) {
    // A device of several ports of which one is meant.
    const bool whole = std::count(chosen.begin(), chosen.end(), port->device) ==
                       std::count(all.begin(), all.end(), port->device);
    const std::string text = whole ? port->device : fmt::format("{}:{}", port->device, port->port);
    if (std::count(texts.begin(), texts.end(), text) == 0) texts.push_back(text);
  }
  return fmt::format("{}{}", BeginsAnother(chosen, all) ? "=" : "", fmt::join(texts, ","));
}

void AdviseFabric(const HostsFacts& facts, std::vector<AdvisedVariable>& advised) {
  const Fabric fabric = FabricOf(facts);
  if (fabric == Fabric::kUnknown) return;
  if (fabric == Fabric::kNone || fabric == Fabric::kPartial) {
    advised.push_back({"NCCL_IB_DISABLE", "1", "",
                       fabric == Fabric::kNone
                           ? "no host has a device of InfiniBand or RoCE that can be used; NCCL "
                             "would find that out by itself"
                           : "some hosts have a device that can be used and some do not: sockets "
                             "are what they have in common"});
    return;
  }
  const bool roce = fabric == Fabric::kRoce;
  std::map<size_t, std::string> devices;
  double gigabits = 0;
  for (const size_t i : Answering(facts)) {
    const HostFacts& own = facts.hosts[i].facts;
    const auto ports = FastestPorts(own, roce ? kRoceLayer : kInfiniBandLayer);
    devices[i] = HcaText(own, ports);
    gigabits = ports.front()->gigabits;
  }
  Advise(facts, "NCCL_IB_HCA", devices,
         fmt::format("the fastest active {} ports ({}); slower ones and those of other networks "
                     "stay out",
                     roce ? "RoCE" : "InfiniBand", GigabitsText(gigabits)),
         advised);
  if (const int gid = roce ? CommonGid(facts) : -1; gid >= 0) {
    advised.push_back({"NCCL_IB_GID_INDEX", std::to_string(gid), "",
                       "RoCE v2's entry with an IPv4 address, the same on all; NCCL 2.21 and newer "
                       "find it by themselves"});
  }
}

}  // namespace

std::vector<Finding> NetworkFindings(const HostsFacts& facts) {
  std::vector<Finding> findings;
  if (Answering(facts).size() > 1) findings = {RouteFinding(facts), MtuFinding(facts)};
  findings.push_back(RdmaFinding(facts));
  return findings;
}

std::vector<AdvisedVariable> AdvisedVariables(const HostsFacts& facts) {
  std::vector<AdvisedVariable> advised;
  if (Answering(facts).empty()) return advised;
  AdviseInterface(facts, advised);
  AdviseFabric(facts, advised);
  advised.push_back({"NCCL_DEBUG", "WARN", "",
                     "NCCL says why it fails, and little else; INFO also says which interface and "
                     "devices it took"});
  return advised;
}

}  // namespace zeroplan
