#include "hwprofiles/loader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/json_source.h"
#include "core/base/strings.h"
#include "core/base/units.h"
#include "hwprofiles/fields.h"
#include "hwprofiles/parts.h"
#include "hwprofiles/writer.h"

namespace zeroplan {
namespace {

bool LooksLikePath(const std::string& text) {
  return text.find('/') != std::string::npos || text.ends_with(".json");
}

std::string ReadFile(const std::string& path, std::string_view option = "⟦hw⟧") {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    ThrowUsage(
        "{}: cannot read \"{}\"; give a built-in name (see 'zeroplan hw list') or a readable "
        ".json file",
        option, path);
  }
  return ReadTextFile(path);
}

}  // namespace

std::vector<std::string> NetworkNames() { return EmbeddedNames("networks"); }

std::vector<std::string> ProfileNames() { return EmbeddedNames("profiles"); }

HardwareProfile LoadProfile(const std::string& name_or_file, std::string_view option) {
  const std::string_view text = EmbeddedText("profiles", name_or_file);
  if (!text.empty()) return ParseProfile(text, "built in");
  if (!LooksLikePath(name_or_file)) return FindProfile(name_or_file, 0, option).profile;
  return ParseProfile(ReadFile(name_or_file, option), name_or_file);
}

std::string ProfileText(const std::string& name_or_file) {
  std::string_view text = EmbeddedText("profiles", name_or_file);
  if (text.empty()) {
    for (const PartKind& kind : PartKinds()) {
      if (EmbeddedText(kind.folder, name_or_file).empty()) continue;
      return PartText(kind, name_or_file);
    }
    if (name_or_file.find('+') != std::string::npos && !LooksLikePath(name_or_file)) {
      return WriteProfile(LoadProfile(name_or_file));
    }
    if (!LooksLikePath(name_or_file)) {
      std::vector<std::string> names = ProfileNames();
      for (const PartKind& kind : PartKinds()) {
        for (std::string& name : EmbeddedNames(kind.folder)) names.push_back(std::move(name));
      }
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
      return ProfileText(MeantName("hw show", name_or_file, names));
    }
    const std::string file = ReadFile(name_or_file);
    ParseProfile(file, name_or_file);  // throws if it is none
    return ComposedText(file, name_or_file);
  }
  return ComposedText(text, name_or_file);
}

namespace {

constexpr std::string_view kNetworkOption = "⟦network⟧";
constexpr std::string_view kLinkOption = "⟦intra_node_bandwidth⟧";
constexpr std::string_view kDrivesOption = "⟦nvme_drives⟧";

// The count before "x" in "8x400Gb", which is cut off; 1 where there is none.
int TakeCount(std::string_view& rate) {
  size_t digits = 0;
  while (digits < rate.size() && std::isdigit(static_cast<unsigned char>(rate[digits]))) ++digits;
  if (digits == 0 || digits > 3 || digits + 1 >= rate.size() || rate[digits] != 'x') return 1;
  const int count = std::stoi(std::string(rate.substr(0, digits)));
  if (count == 0) return 1;  // the rate that follows is then refused with its "0x"
  rate.remove_prefix(digits + 1);
  return count;
}

Figure FromCommandLine(double bytes_per_second, std::string_view option, const std::string& text) {
  Figure figure;
  figure.value = bytes_per_second;
  figure.written = bytes_per_second / 1e9;
  figure.unit = "GB/s";
  figure.source = FigureSource::kGiven;
  figure.reference = fmt::format("{} {}", option, text);
  return figure;
}

void CheckRange(double value, const FigureRule& rule, std::string_view option,
                const std::string& text) {
  if (value >= rule.low && value <= rule.high) return;
  const bool bare = text.find_first_not_of("0123456789.") == std::string::npos;
  ThrowUsage("{}: {} {}is not physical; use {:g} to {:g} GB/s (1 GB/s is 8 Gb/s), with its unit{}",
             option, text, bare ? "without a unit is bytes a second, which " : "", rule.low / 1e9,
             rule.high / 1e9, bare ? fmt::format(", such as {}Gb", text) : "");
}

}  // namespace

void ApplyNetwork(HardwareProfile& profile, const std::string& text) {
  const std::vector<std::string> names = NetworkNames();
  for (const std::string& name : names) {
    if (name != text) continue;
    profile.network = LoadNetwork(name);
    return;
  }
  const bool starts_as_rate = !text.empty() && std::isdigit(static_cast<unsigned char>(text[0]));
  if (!starts_as_rate) {
    const std::string nearest = NearestName(text, names);
    ThrowUsage("{}: \"{}\" is no built-in network{}; use {}, or a rate such as 25Gb or 8x400Gb",
               kNetworkOption, text,
               nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest),
               fmt::join(names, ", "));
  }
  std::string_view rate = text;
  const int adapters = TakeCount(rate);
  const double bandwidth = adapters * ParseBandwidth(rate, kNetworkOption);
  CheckRange(bandwidth, figure_rules::kNetworkBandwidth, kNetworkOption, text);
  NetworkProfile network;
  network.name = text;
  network.bandwidth_per_node = FromCommandLine(bandwidth, kNetworkOption, text);
  network.latency = profile.network ? profile.network->latency : LoadNetwork("eth-10").latency;
  profile.network = std::move(network);
}

void CheckNetwork(const HardwareProfile& profile, int gpus, int gpus_per_node) {
  const int nodes = (gpus + gpus_per_node - 1) / gpus_per_node;
  if (nodes == 1) return;
  if (!profile.network) {
    // A profile of one GPU may have a variant with several in one machine: "2x-rtx4090".
    const std::vector<std::string> names = ProfileNames();
    const std::string machine = fmt::format("{}x-{}", gpus, profile.name);
    const bool known = std::find(names.begin(), names.end(), machine) != names.end();
    ThrowUsage(
        "⟦gpus⟧: {} GPUs, {} a node, are {} nodes, and the hardware profile {} has no network; "
        "{}add {} NAME|RATE (such as {} 100Gb), or set ⟦gpus_per_node⟧ to the GPUs of one node",
        gpus, gpus_per_node, nodes, profile.name,
        known ? fmt::format("for one node use ⟦hw⟧ {}; else ", machine) : "", kNetworkOption,
        kNetworkOption);
  }
  const std::optional<Figure>& most = profile.network->most_nodes;
  if (!most || nodes <= most->value) return;
  ThrowUsage(
      "⟦gpus⟧: {} GPUs are {} nodes, and {} joins {:.0f}; use {:.0f} GPUs at most, or {} "
      "NAME|RATE for what joins more",
      gpus, nodes, profile.network->name, most->value, most->value * gpus_per_node, kNetworkOption);
}

void ApplyGpuLink(HardwareProfile& profile, const std::string& text) {
  const double bandwidth = ParseBandwidth(text, kLinkOption);
  CheckRange(bandwidth, figure_rules::kLink, kLinkOption, text);
  profile.node.gpu_link = FromCommandLine(bandwidth, kLinkOption, text);
  profile.node.collectives.reset();
  profile.node.nccl_environment.reset();
}

void ApplyNvmeDrives(HardwareProfile& profile, uint64_t drives) {
  NodeProfile& node = profile.node;
  if (!node.nvme_read || !node.nvme_write) {
    ThrowUsage(
        "{}: {} has no effect: the hardware profile {} has no rates of a disk; add host.nvme_read "
        "and host.nvme_write to a profile of your own, or leave it out",
        kDrivesOption, drives, profile.name);
  }
  const double of_profile = node.nvme_drives ? node.nvme_drives->value : 1;
  const auto wanted = static_cast<double>(drives);
  const std::string known =
      node.nvme_drives ? fmt::format("{:.0f} drive{}", of_profile, of_profile == 1 ? "" : "s")
                       : "1 drive, as the profile does not say of how many";
  const std::string reference =
      fmt::format("{} {}: as many like those of the hardware profile, whose figures are of {}",
                  kDrivesOption, drives, known);
  const double factor = wanted / of_profile;
  const auto scale = [&](std::optional<Figure>& figure, const FigureRule& rule) {
    if (!figure || factor == 1) return;
    if (figure->value * factor > rule.high) {
      ThrowUsage("{}: {} drives would be {:.3g} {}, more than any node has; use {:.0f} or less",
                 kDrivesOption, drives, figure->written * factor, figure->unit,
                 std::max(1.0, std::floor(of_profile * rule.high / figure->value)));
    }
    figure->value *= factor;
    figure->written *= factor;
    figure->source = FigureSource::kDerived;
    figure->reference = reference;
  };
  scale(node.nvme_read, figure_rules::kDisk);
  scale(node.nvme_write, figure_rules::kDisk);
  scale(node.nvme_capacity, figure_rules::kDiskCapacity);
  node.nvme_drives = Figure{wanted, wanted, "count", FigureSource::kDerived, reference};
}

}  // namespace zeroplan
