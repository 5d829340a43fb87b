#include "hwprofiles/guesses.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "core/settings/setup_facts.h"
#include "hwprofiles/fields.h"

namespace zeroplan {
namespace {

// The figures that `part` is timed by.
std::vector<const Figure*> Rates(const HardwareProfile& profile, MachinePart part,
                                 int ranks_per_node) {
  const NodeProfile& node = profile.node;
  std::vector<const Figure*> rates;
  const auto add = [&](const std::optional<Figure>& figure) {
    if (figure) rates.push_back(&*figure);
  };
  // No default: a new part has to say what it is timed by.
  switch (part) {
    case MachinePart::kHost:
      add(node.adam_bandwidth);
      add(node.triad_bandwidth);
      break;
    case MachinePart::kPcie: {
      const PcieProfile& pcie = node.pcie;
      const auto rate = [&](const Figure& single, const std::optional<Figure>& all) {
        rates.push_back(ranks_per_node > 1 && all ? &*all : &single);
      };
      rate(pcie.to_device_single, pcie.to_device_all);
      rate(pcie.from_device_single, pcie.from_device_all);
      rate(pcie.both_single, pcie.both_all);
      break;
    }
    case MachinePart::kStorage:
      add(node.nvme_read);
      add(node.nvme_write);
      break;
    case MachinePart::kLink:
      rates.push_back(&node.gpu_link);
      break;
    case MachinePart::kNetwork:
      if (!profile.network) break;
      rates.push_back(&profile.network->bandwidth_per_node);
      rates.push_back(&profile.network->latency);
      break;
  }
  return rates;
}

}  // namespace

std::vector<Guess> GuessedFigures(const HardwareProfile& profile,
                                  std::span<const MachinePart> parts, int ranks_per_node) {
  std::vector<Guess> guesses;
  for (const MachinePart part : parts) {
    for (const Figure* rate : Rates(profile, part, ranks_per_node)) {
      if (rate->source != FigureSource::kDerived) continue;
      guesses.push_back({part, FigureKey(profile, *rate), *rate});
    }
  }
  return guesses;
}

std::vector<MachinePart> PartsUsed(const TrainSetup& setup, int nodes, int ranks_per_node) {
  const bool nvme = setup.zero.offload_optimizer.device == OffloadDevice::kNvme ||
                    setup.zero.offload_param.device == OffloadDevice::kNvme;
  std::vector<MachinePart> parts;
  if (UsesHost(setup)) parts = {MachinePart::kHost, MachinePart::kPcie};
  if (nvme) parts.push_back(MachinePart::kStorage);
  if (ranks_per_node > 1) parts.push_back(MachinePart::kLink);
  if (nodes > 1) parts.push_back(MachinePart::kNetwork);
  return parts;
}

std::string GuessNote(const std::vector<Guess>& guesses) {
  if (guesses.empty()) return "";
  std::vector<std::string> rates;
  bool of_network = false;
  for (const Guess& guess : guesses) {
    rates.push_back(
        fmt::format("{} {:.4g} {}", guess.key, guess.figure.written, guess.figure.unit));
    of_network = of_network || guess.part == MachinePart::kNetwork;
  }
  return fmt::format("Guessed, not measured: {}{}", fmt::join(rates, ", "),
                     of_network ? "; 'zeroplan hw measure' on two of those hosts measures them."
                                : "; 'zeroplan hw measure' on that machine measures them.");
}

bool MayUseSockets(const HardwareProfile& profile) {
  if (!profile.network || profile.network->reached) return false;
  constexpr double kMost = 50e9 / 8;
  const Figure& bandwidth = profile.network->bandwidth_per_node;
  const bool ethernet = profile.network->name.find("Ethernet") != std::string::npos;
  return bandwidth.value <= kMost && (ethernet || bandwidth.source == FigureSource::kGiven);
}

std::string NetworkNote(const HardwareProfile& profile) {
  const NetworkProfile& network = *profile.network;
  const std::string bandwidth = fmt::format(
      "network.bandwidth_per_node, {:.4g} {} ({})", network.bandwidth_per_node.written,
      network.bandwidth_per_node.unit, FigureSourceName(network.bandwidth_per_node.source));
  if (network.reached) {
    const std::optional<Figure>& by_groups = network.reached_by_groups;
    const std::optional<Figure>& reductions = network.reached_by_all_reduces;
    return fmt::format("Collectives are taken to reach {:.3g} (network.reached, {}){}{} of {}.",
                       network.reached->value, FigureSourceName(network.reached->source),
                       by_groups ? fmt::format(", groups at once {:.3g}", by_groups->value) : "",
                       reductions ? fmt::format(", all-reduces {:.3g}", reductions->value) : "",
                       bandwidth);
  }
  const std::string sockets = fmt::format(
      " Over TCP sockets they may reach half of that: a published run on two nodes, whose "
      "containers "
      "had an overlay network on 10 Gb/s, took {:.1f} times as long as is predicted.",
      1 + kSocketsWorst);
  return fmt::format(
      "Collectives are assumed to reach {:.2f} of {}; network.reached in a profile says what yours "
      "do.{}",
      kAssumedNetworkShare, bandwidth, MayUseSockets(profile) ? sockets : "");
}

std::string NcclNote(const HardwareProfile& profile, const std::string& environment) {
  const std::optional<std::string>& measured = profile.node.nccl_environment;
  if (!measured || *measured == environment) return "";
  const auto named = [](const std::string& variables) {
    return variables.empty() ? "no variables NCCL_*" : variables;
  };
  return fmt::format(
      "The collectives of {} were measured under {}; here NCCL runs under {}, so that predicted "
      "times may not hold. 'zeroplan hw measure' under these measures anew.",
      profile.name, named(*measured), named(environment));
}

}  // namespace zeroplan
