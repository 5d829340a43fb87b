// What zeroplan doctor --hosts prints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/common/output.h"
#include "cli/doctor/hosts.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "core/base/version.h"
#include "machine/gpu_state.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kPairsShown = 28;  // all of eight hosts
constexpr const char* kNotKnown = "?";

// Columns as wide as their widest cell, two spaces apart.
std::string TableText(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}} ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string OrNotKnown(const std::string& text) { return text.empty() ? kNotKnown : text; }

// "400 Gb/s InfiniBand", "none".
std::string RdmaCell(const HostFacts& facts) {
  const RdmaPort* best = nullptr;
  for (const RdmaPort& port : facts.network.rdma) {
    if (port.state != "ACTIVE" || !port.usable || !facts.verbs_library) continue;
    if (best == nullptr || port.gigabits > best->gigabits) best = &port;
  }
  if (best == nullptr) return facts.network.rdma.empty() ? "none" : "not usable";
  const auto count = std::count_if(
      facts.network.rdma.begin(), facts.network.rdma.end(), [&](const RdmaPort& port) {
        return port.state == "ACTIVE" && port.link_layer == best->link_layer &&
               port.gigabits >= best->gigabits;
      });
  return fmt::format("{} x {} {}", count, GigabitsText(best->gigabits),
                     best->link_layer == "Ethernet" ? "RoCE" : best->link_layer);
}

std::string HostTable(const HostsFacts& facts) {
  std::vector<std::vector<std::string>> rows = {
      {"host", "interface", "speed", "MTU", "InfiniBand", "GPUs", "driver", "NCCL", "zeroplan"}};
  for (size_t i = 0; i < facts.hosts.size(); ++i) {
    const HostReport& host = facts.hosts[i];
    if (!host.answers()) {
      rows.push_back({host.name, "does not answer"});
      continue;
    }
    const std::vector<std::string> carriers = CarriersOf(facts, i);
    std::vector<std::string> speeds, mtus;
    for (const std::string& name : carriers) {
      const NetworkInterface* interface = InterfaceNamed(host.facts, name);
      if (interface == nullptr) continue;
      speeds.push_back(interface->megabits == 0
                           ? kNotKnown
                           : GigabitsText(static_cast<double>(interface->megabits) / 1000));
      mtus.push_back(interface->mtu == 0 ? kNotKnown : std::to_string(interface->mtu));
    }
    const LibraryFacts& libraries = host.facts.libraries;
    rows.push_back({host.name, OrNotKnown(fmt::format("{}", fmt::join(carriers, ","))),
                    OrNotKnown(fmt::format("{}", fmt::join(speeds, ","))),
                    OrNotKnown(fmt::format("{}", fmt::join(mtus, ","))), RdmaCell(host.facts),
                    host.facts.driver.empty() ? kNotKnown : std::to_string(host.facts.gpus),
                    OrNotKnown(host.facts.driver),
                    libraries.nccl == 0 ? kNotKnown : LibraryVersionText(libraries.nccl),
                    OrNotKnown(host.facts.zeroplan)});
  }
  return "\nHosts\n" + TableText(rows);
}

std::string PairTable(const HostsFacts& facts) {
  std::vector<const HostPair*> pairs;
  for (const HostPair& pair : facts.pairs) pairs.push_back(&pair);
  if (pairs.empty()) return "";
  const ProbeLimits limits;
  std::string title =
      fmt::format("Pairs, by {} TCP streams of {:g} s", limits.streams, limits.window_seconds);
  if (pairs.size() > kPairsShown) {
    std::stable_sort(pairs.begin(), pairs.end(), [](const HostPair* a, const HostPair* b) {
      return std::min(a->speed.bytes_per_second, a->speed.bytes_per_second_back) <
             std::min(b->speed.bytes_per_second, b->speed.bytes_per_second_back);
    });
    title +=
        fmt::format(": the {} slowest of {} (--format json has all)", kPairsShown, pairs.size());
    pairs.resize(kPairsShown);
  }
  std::vector<std::vector<std::string>> rows = {{"from", "to", "round trip", "there", "back"}};
  const auto rate = [](double bytes) {
    return bytes > 0 ? FormatBytes(static_cast<uint64_t>(bytes)) + "/s" : "nothing came through";
  };
  for (const HostPair* pair : pairs) {
    const std::string &from = facts.hosts[pair->from].name, &to = facts.hosts[pair->to].name;
    const LinkSpeed& speed = pair->speed;
    if (!speed.why.empty()) {
      rows.push_back({from, to, "not measured"});
    } else {
      rows.push_back({from, to, FormatSeconds(speed.round_trip_seconds),
                      rate(speed.bytes_per_second), rate(speed.bytes_per_second_back)});
    }
  }
  return fmt::format("\n{}\n{}", title, TableText(rows));
}

std::string VariablesText(const HostsFacts& facts) {
  const std::vector<AdvisedVariable> advised = AdvisedVariables(facts);
  if (advised.empty()) return "";
  std::string text = "\nTo set on all hosts, for zeroplan, DeepSpeed and PyTorch\n";
  std::string reason;
  const auto tell = [&] {
    if (!reason.empty()) text += Paragraph("      " + reason, 6);
  };
  for (size_t i = 0; i < advised.size(); ++i) {
    const AdvisedVariable& one = advised[i];
    text += fmt::format("  export {}={}{}\n", one.name, ShellWord(one.value),
                        one.host.empty() ? "" : "  # on " + one.host);
    reason = one.reason;
    const bool last_of_name = i + 1 == advised.size() || advised[i + 1].name != one.name;
    if (last_of_name) tell();
  }
  return text;
}

std::string SummaryText(const HostsFacts& facts) {
  const size_t answering = Answering(facts).size();
  if (answering < facts.hosts.size()) {
    return fmt::format("{} of {} hosts answer.", answering, facts.hosts.size());
  }
  size_t whole = 0;
  for (const HostLink& link : facts.links) {
    bool all = link.tried && !link.ports.empty();
    for (size_t i = 0; i < link.ports.size(); ++i) {
      all = all && (facts.hosts[link.to].facts.ports[i].port == 0 ||
                    link.ports[i].state == ProbeReach::State::kReached);
    }
    whole += all ? 1 : 0;
  }
  if (whole == facts.links.size()) {
    return fmt::format("{} hosts, and all reach one another.", facts.hosts.size());
  }
  return fmt::format("{} hosts answer; of {} ways from one to another {} {} blocked.",
                     facts.hosts.size(), facts.links.size(), facts.links.size() - whole,
                     facts.links.size() - whole == 1 ? "is" : "are");
}

OrderedJson TextOrNull(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}
template <typename Number>
OrderedJson PositiveOrNull(Number number) {
  return number > 0 ? OrderedJson(number) : OrderedJson(nullptr);
}

OrderedJson NetworkJson(const NetworkState& network) {
  OrderedJson interfaces = OrderedJson::array(), rdma = OrderedJson::array();
  for (const NetworkInterface& one : network.interfaces) {
    interfaces.push_back({{"interface", one.name},
                          {"up", one.up},
                          {"mtu", PositiveOrNull(one.mtu)},
                          {"megabits_per_second", PositiveOrNull(one.megabits)},
                          {"addresses", one.addresses}});
  }
  for (const RdmaPort& port : network.rdma) {
    rdma.push_back({{"device", port.device},
                    {"port", port.port},
                    {"state", TextOrNull(port.state)},
                    {"gigabits_per_second", PositiveOrNull(port.gigabits)},
                    {"link_layer", TextOrNull(port.link_layer)},
                    {"usable", port.usable},
                    {"roce_v2_gid_index",
                     port.roce_v2_gid < 0 ? OrderedJson(nullptr) : OrderedJson(port.roce_v2_gid)}});
  }
  return {{"interfaces", std::move(interfaces)}, {"rdma", std::move(rdma)}};
}

OrderedJson HostReportJson(const HostReport& host) {
  OrderedJson json = {
      {"host", host.name}, {"answers", host.answers()}, {"why_not", TextOrNull(host.why)}};
  if (!host.answers()) return json;
  const HostFacts& facts = host.facts;
  json["name"] = facts.network.host_name;
  json["own_addresses"] = facts.own_addresses;
  json["zeroplan"] = facts.zeroplan;
  json["driver"] = TextOrNull(facts.driver);
  json["gpus"] = facts.driver.empty() ? OrderedJson(nullptr) : OrderedJson(facts.gpus);
  json["cuda_runtime"] = PositiveOrNull(facts.libraries.runtime);
  json["nccl"] = PositiveOrNull(facts.libraries.nccl);
  json["clock_ahead_seconds"] = host.clock_ahead_seconds;
  json["clock_error_seconds"] = host.clock_error_seconds;
  json["verbs_library"] = facts.verbs_library;
  json.update(NetworkJson(facts.network));
  return json;
}

OrderedJson LinkJson(const HostsFacts& facts, const HostLink& link) {
  constexpr const char* kStates[] = {"reached", "silent",   "refused",
                                     "failed",  "stranger", "other_host"};
  OrderedJson ports = OrderedJson::array();
  for (size_t i = 0; i < link.ports.size(); ++i) {
    const ProbePort& port = facts.hosts[link.to].facts.ports[i];
    const bool tried = port.port > 0 && !link.address.empty();
    ports.push_back(
        {{"port", port.port > 0 ? port.port : port.asked},
         {"free", port.asked == 0},
         {"state", tried ? kStates[static_cast<size_t>(link.ports[i].state)] : "not_tried"},
         {"why", TextOrNull(tried ? link.ports[i].why : port.why)}});
  }
  return {{"from", facts.hosts[link.from].name},
          {"to", facts.hosts[link.to].name},
          {"address", TextOrNull(link.address)},
          {"interface", TextOrNull(link.route ? link.route->interface : "")},
          {"source", TextOrNull(link.route ? link.route->source : "")},
          {"gateway", TextOrNull(link.route ? link.route->gateway : "")},
          {"ports", std::move(ports)}};
}

}  // namespace

std::string HostsText(const HostsFacts& facts, bool all) {
  return Paragraph(SummaryText(facts), 2) + HostTable(facts) + PairTable(facts) +
         FindingsText({{"Checks", HostsFindings(facts)}}, all) + VariablesText(facts);
}

std::string HostsJson(const HostsFacts& facts) {
  OrderedJson hosts = OrderedJson::array(), links = OrderedJson::array(),
              pairs = OrderedJson::array(), checks = OrderedJson::array(),
              variables = OrderedJson::array();
  for (const HostReport& host : facts.hosts) hosts.push_back(HostReportJson(host));
  for (const HostLink& link : facts.links) {
    if (link.tried) links.push_back(LinkJson(facts, link));
  }
  for (const HostPair& pair : facts.pairs) {
    const LinkSpeed& speed = pair.speed;
    pairs.push_back({{"from", facts.hosts[pair.from].name},
                     {"to", facts.hosts[pair.to].name},
                     {"round_trip_seconds", PositiveOrNull(speed.round_trip_seconds)},
                     {"bytes_per_second", std::llround(speed.bytes_per_second)},
                     {"bytes_per_second_back", std::llround(speed.bytes_per_second_back)},
                     {"why_not", TextOrNull(speed.why)}});
  }
  for (const Finding& finding : HostsFindings(facts)) {
    checks.push_back({{"check", finding.check},
                      {"state", CheckStateName(finding.state)},
                      {"fact", finding.fact},
                      {"cost", TextOrNull(finding.cost)},
                      {"fix", TextOrNull(finding.fix)}});
  }
  for (const AdvisedVariable& one : AdvisedVariables(facts)) {
    variables.push_back({{"name", one.name},
                         {"value", one.value},
                         {"host", TextOrNull(one.host)},
                         {"reason", one.reason}});
  }
  const OrderedJson json = {{"schema", "zeroplan.doctor-hosts/1"}, {"zeroplan", kVersion},
                            {"hosts", std::move(hosts)},           {"links", std::move(links)},
                            {"pairs", std::move(pairs)},           {"checks", std::move(checks)},
                            {"variables", std::move(variables)}};
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace zeroplan
