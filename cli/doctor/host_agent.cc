// The process of zeroplan doctor --hosts on each host.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "cli/doctor/facts.h"
#include "cli/doctor/hosts.h"
#include "core/base/error.h"
#include "core/base/version.h"

namespace zeroplan {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NetworkInterface, name, up, mtu, megabits, loopback, addresses)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RdmaPort, device, port, state, gigabits, link_layer, usable,
                                   roce_v2_gid)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NetworkState, host_name, interfaces, rdma, first_free_port,
                                   last_free_port)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ProbePort, asked, port, why)

namespace {

HostFacts LookAtHost() {
  HostFacts facts;
  facts.zeroplan = kVersion;
  MachineFacts machine;
  machine.executor = QueryExecutor();
  AskDriver(machine);
  facts.libraries = machine.executor.libraries;
  if (machine.executor.state == ExecutorFacts::State::kAbsent) {
    facts.why_not = machine.executor.path + " is not there";
  } else if (machine.executor.state != ExecutorFacts::State::kAnswers) {
    facts.why_not = fmt::format("{}: {}", machine.executor.path, machine.executor.why);
  }
  facts.driver = machine.gpus.driver;
  facts.driver_note = !machine.driver_failed.empty() ? machine.driver_failed
                      : machine.gpus.is_off          ? "ZEROPLAN_NO_DETECT is set"
                      : !machine.gpus.library        ? "there is none"
                                                     : machine.gpus.why;
  facts.gpus = static_cast<int>(machine.gpus.gpus.size());
  facts.network = QueryNetworkState();
  facts.verbs_library = HasVerbsLibrary();
  std::string why;
  facts.own_addresses = ResolveHost(facts.network.host_name, why);
  return facts;
}

// Where the host reaches one other.
struct Way {
  std::string address, why;
  std::vector<ProbeReach> ports;
};

// Tries all addresses of a name at once, and keeps the first of those by which the most ports are
// reached.
WireJson TryHosts(const WireJson& order, const ProbeToken& token, double wait) {
  std::vector<ProbeTarget> targets;
  std::vector<std::vector<std::string>> addresses;
  std::vector<Way> ways;
  for (const WireJson& other : order.at("targets")) {
    Way& way = ways.emplace_back();
    addresses.push_back(ResolveHost(other.at("host").get<std::string>(), way.why));
    for (const std::string& address : addresses.back()) {
      for (const WireJson& port : other.at("ports")) {
        targets.push_back({address, port.get<int>(), other.at("name").get<uint32_t>()});
      }
    }
  }
  const std::vector<ProbeReach> reached = ReachAll(targets, token, wait);
  auto at = reached.begin();
  WireJson links = WireJson::array();
  for (size_t i = 0; i < ways.size(); ++i) {
    Way& way = ways[i];
    std::ptrdiff_t most = -1;
    const auto count = static_cast<std::ptrdiff_t>(order.at("targets")[i].at("ports").size());
    for (const std::string& address : addresses[i]) {
      const auto end = at + count;
      const auto open = std::count_if(at, end, [](const ProbeReach& reach) {
        return reach.state == ProbeReach::State::kReached;
      });
      if (open > most) way = {address, "", {at, end}};
      most = std::max(most, open);
      at = end;
    }
    WireJson ports = WireJson::array();
    for (const ProbeReach& reach : way.ports) {
      ports.push_back(
          {{"state", static_cast<int>(reach.state)}, {"why", reach.why}, {"other", reach.other}});
    }
    const std::optional<Route> route = RouteTo(way.address);
    links.push_back({{"address", way.address},
                     {"why", way.why},
                     {"ports", std::move(ports)},
                     {"route", route ? WireJson{{"interface", route->interface},
                                                {"source", route->source},
                                                {"gateway", route->gateway}}
                                     : WireJson(nullptr)}});
  }
  return {{"links", std::move(links)}};
}

WireJson MeasureLink(const WireJson& order, const ProbeToken& token, double wait) {
  ProbeLimits limits;
  limits.wait_seconds = wait;
  const LinkSpeed speed =
      MeasureLinkSpeed({order.at("address").get<std::string>(), order.at("port").get<int>(),
                        order.at("name").get<uint32_t>()},
                       token, limits);
  return {{"why", speed.why},
          {"round_trip", speed.round_trip_seconds},
          {"to", speed.bytes_per_second},
          {"back", speed.bytes_per_second_back}};
}

void SayAnswer(const WireJson& answer) {
  std::cout << kHostAnswerMark << answer.dump(-1, ' ', false, WireJson::error_handler_t::replace)
            << std::endl;
}

}  // namespace

WireJson HostFactsToWire(const HostFacts& facts) {
  return {{"zeroplan", facts.zeroplan},
          {"why_not", facts.why_not},
          {"libraries", LibrariesAsJson(facts.libraries)},
          {"driver", facts.driver},
          {"driver_note", facts.driver_note},
          {"gpus", facts.gpus},
          {"network", facts.network},
          {"verbs_library", facts.verbs_library},
          {"own_addresses", facts.own_addresses},
          {"ports", facts.ports}};
}

HostFacts HostFactsFromWire(const WireJson& wire) {
  HostFacts facts;
  wire.at("zeroplan").get_to(facts.zeroplan);
  wire.at("why_not").get_to(facts.why_not);
  facts.libraries =
      LibrariesFromJson(wire.at("libraries").get<std::string>()).value_or(LibraryFacts{});
  wire.at("driver").get_to(facts.driver);
  wire.at("driver_note").get_to(facts.driver_note);
  wire.at("gpus").get_to(facts.gpus);
  wire.at("network").get_to(facts.network);
  wire.at("verbs_library").get_to(facts.verbs_library);
  wire.at("own_addresses").get_to(facts.own_addresses);
  wire.at("ports").get_to(facts.ports);
  return facts;
}

void RunHostProbe() {
  std::string line;
  if (!std::getline(std::cin, line)) return;
  try {
    const WireJson begin = WireJson::parse(line);
    const double wait = begin.at("wait").get<double>();
    ProbeToken token{};
    const auto text = begin.at("token").get<std::string>();
    std::copy_n(text.begin(), std::min(text.size(), token.size()), token.begin());
    // Before there are threads.
    HostFacts facts = LookAtHost();
    const ProbeServer server(token, begin.at("name").get<uint32_t>(),
                             begin.at("ports").get<std::vector<int>>(), wait);
    facts.ports = server.ports();
    SayAnswer(HostFactsToWire(facts));
    while (std::getline(std::cin, line)) {
      const WireJson order = WireJson::parse(line);
      const auto what = order.at("order").get<std::string>();
      if (what == "clock") {
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        SayAnswer({{"now", std::chrono::duration<double>(now).count()}});
      } else if (what == "reach") {
        SayAnswer(TryHosts(order, token, wait));
      } else {
        SayAnswer(MeasureLink(order, token, wait));
      }
    }
  } catch (const WireJson::exception& error) {
    ThrowUsage("{}: is not for people: zeroplan doctor --hosts starts it ({})", kHostAgentCommand,
               error.what());
  }
}

}  // namespace zeroplan
