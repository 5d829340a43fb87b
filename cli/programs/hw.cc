// zeroplan hw list|show|measure|check: the hardware profiles and where their numbers come from.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"
#include "core/base/units.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/parts.h"
#include "planner/report/report_text.h"
#include "planner/request/fields.h"
#include "planner/request/parse.h"

namespace zeroplan {
namespace {

// 25.8 GB/s, 1.5 TB: three digits, in powers of ten.
std::string Short(double bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); }

// Rows of equally many cells, in columns as wide as their widest.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

// Single cards by generation, oldest first, then machines, then what clouds rent out.
struct ListedProfile {
  HardwareProfile profile;
  std::string group;
  size_t order = 0;
};

std::vector<ListedProfile> GroupedProfiles() {
  struct Generation {
    std::string_view begin, name;  // of the architecture's name
  };
  constexpr Generation kGenerations[] = {{"volta", "Volta"},   {"turing", "Turing"},
                                         {"ampere", "Ampere"}, {"ada", "Ada"},
                                         {"hopper", "Hopper"}, {"blackwell", "Blackwell"}};
  const std::vector<KnownGpu>& gpus = KnownGpus();
  std::vector<ListedProfile> listed;
  for (const std::string& name : ProfileNames()) {
    ListedProfile& one = listed.emplace_back();
    one.profile = LoadProfile(name);
    const bool card = std::any_of(gpus.begin(), gpus.end(),
                                  [&](const KnownGpu& gpu) { return gpu.part == name; });
    const bool counted = name.find("x-") == name.find_first_not_of("0123456789");
    one.order = std::size(kGenerations);
    one.group = "Other cards";
    if (!card) {
      const bool owned = counted || name.starts_with("dgx-") || name.starts_with("hgx-");
      one.group = owned ? "Machines of several" : "What clouds rent out";
      one.order += owned ? 1 : 2;
      continue;
    }
    for (size_t i = 0; i < std::size(kGenerations); ++i) {
      if (!one.profile.gpu.architecture.starts_with(kGenerations[i].begin)) continue;
      one.group = fmt::format("Single cards: {}", kGenerations[i].name);
      one.order = i;
    }
  }
  std::stable_sort(
      listed.begin(), listed.end(),
      [](const ListedProfile& a, const ListedProfile& b) { return a.order < b.order; });
  return listed;
}

std::string ListProfiles() {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "GPUS", "GPU", "MEMORY", "LINK", "NETWORK"}};
  const std::vector<ListedProfile> listed = GroupedProfiles();
  for (const ListedProfile& one : listed) {
    const HardwareProfile& profile = one.profile;
    const NodeProfile& node = profile.node;
    rows.push_back(
        {profile.name, fmt::format("{:.0f}", node.gpus.value), profile.gpu.name,
         Short(profile.gpu.memory.value),
         fmt::format("{} {}/s", LinkKindName(node.link_kind), Short(node.gpu_link.value)),
         profile.network ? profile.network->name : "-"});
    if (profile.name == kDefaultProfile) rows.back()[0] += " *";
  }
  std::string text = Table(rows), left_out;
  if (FitLines(text, TerminalColumns(STDOUT_FILENO)) != text) {
    // The names of GPUs are what may be broken, so they go last.
    for (auto& row : rows) row = {row[0], row[1], row[3], row[4], row[2]};
    text = Table(rows);
    left_out = "Left out for want of room: NETWORK; a wider terminal and --format json have it.\n";
  }
  std::string grouped, group;
  const std::vector<std::string_view> lines = Split(text, '\n');
  grouped.append(lines.front()).append("\n");
  for (size_t i = 0; i < listed.size(); ++i) {
    if (listed[i].group != group) {
      group = listed[i].group;
      grouped.append("\n").append(group).append("\n");
    }
    grouped.append(lines[i + 1]).append("\n");
  }
  return grouped + '\n' + left_out +
         Paragraph(fmt::format(
                       "* where --hw is left out and this machine has no GPU that is known. LINK "
                       "is one GPU's to the others, each way. --hw takes these names, what people "
                       "call the cards, and numbers of them (\"RTX 4090\", 8xh100). Networks for "
                       "--network: {}.",
                       fmt::join(NetworkNames(), ", ")),
                   0);
}

// A profile's figures, a row each: "gpu.memory", value, unit, where it comes from.
using FigureRows = std::vector<std::vector<std::string>>;

void AddFigures(const std::string& path, const ProfileJson& json, FigureRows& rows) {
  const auto plain = [](const ProfileJson& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  if (json.is_object() && json.contains("rows")) {
    rows.push_back({path, fmt::format("{} rows", json["rows"].size()),
                    json.contains("unit") ? plain(json["unit"]) : "",
                    fmt::format("{}: {}", plain(json.value("source", ProfileJson(""))),
                                plain(json.value("reference", ProfileJson(""))))});
    return;
  }
  if (json.is_object() && json.contains("value")) {
    std::string unit = plain(json.value("unit", ProfileJson("")));
    if (unit == "count") unit = "";
    std::string more;
    for (const auto& [key, value] : json.items()) {
      if (key == "value" || key == "unit" || key == "source" || key == "reference" ||
          key == "sparsity") {
        continue;
      }
      more += fmt::format("{}{} {}", more.empty() ? " (" : ", ", key, plain(value));
    }
    rows.push_back({path, plain(json["value"]), unit,
                    fmt::format("{}: {}{}", plain(json.value("source", ProfileJson(""))),
                                plain(json.value("reference", ProfileJson(""))),
                                more.empty() ? "" : more + ")")});
    return;
  }
  if (json.is_object() || (json.is_array() && !json.empty() && json[0].is_object())) {
    size_t at = 0;
    for (const auto& [key, value] : json.items()) {
      const std::string name = json.is_array() ? fmt::format("[{}]", at++) : key;
      AddFigures(
          path.empty() ? name : fmt::format("{}{}{}", path, json.is_array() ? "" : ".", name),
          value, rows);
    }
    return;
  }
  if (path != "schema") rows.push_back({path, plain(json), "", ""});
}

// Sources stand below their figure where a line has no room for them.
std::string FiguresText(const std::string& profile) {
  FigureRows rows;
  AddFigures("", ParseJson(profile, "hw show"), rows);
  size_t name = 6, value = 5, unit = 4;
  for (const auto& row : rows) {
    name = std::max(name, row[0].size());
    if (!row[3].empty()) value = std::max(value, row[1].size());
    unit = std::max(unit, row[2].size());
  }
  constexpr size_t kSourceIndent = 4;
  std::string text = fmt::format("{:<{}}  {:>{}}  {:<{}}  {}\n", "FIGURE", name, "VALUE", value,
                                 "UNIT", unit, "SOURCE");
  for (const auto& row : rows) {
    if (row[3].empty()) {
      text += Paragraph(fmt::format("{:<{}}  {}", row[0], name, row[1]), kSourceIndent);
      continue;
    }
    const std::string figure =
        fmt::format("{:<{}}  {:>{}}  {:<{}}", row[0], name, row[1], value, row[2], unit);
    if (figure.size() + 2 + row[3].size() <= PageColumns()) {
      text += fmt::format("{}  {}\n", figure, row[3]);
    } else {
      text += figure.substr(0, figure.find_last_not_of(' ') + 1) + '\n';
      text += Paragraph(std::string(kSourceIndent, ' ') + row[3], kSourceIndent);
    }
  }
  return text;
}

// Keys are a contract (docs/metrics.md).
std::string ProfilesJson() {
  using Json = nlohmann::ordered_json;
  Json profiles = Json::array();
  for (const std::string& name : ProfileNames()) {
    const HardwareProfile profile = LoadProfile(name);
    const NodeProfile& node = profile.node;
    profiles.push_back(
        {{"name", name},
         {"gpus", node.gpu_count()},
         {"gpu", profile.gpu.name},
         {"gpu_memory_bytes", std::llround(profile.gpu.memory.value)},
         {"link", LinkKindName(node.link_kind)},
         {"link_bytes_per_second", node.gpu_link.value},
         {"network", profile.network ? Json(profile.network->name) : Json(nullptr)}});
  }
  return Json({{"schema", "zeroplan.hardware/1"},
               {"default", kDefaultProfile},
               {"profiles", std::move(profiles)},
               {"networks", NetworkNames()}})
             .dump(2) +
         '\n';
}

}  // namespace

void RegisterHardware(Command& app) {
  Command group = app.AddGroup("hw", "Hardware profiles");
  group.Footer("Examples:\n  zeroplan hw list\n  zeroplan hw show " + std::string(kDefaultProfile) +
               " --format json > mine.json   (edit, then --hw ./mine.json)\n"
               "  zeroplan hw measure -o mine.json");
  Command list = group.Add("list", "Built-in profiles");
  auto format = std::make_shared<Given<OutputFormat>>();
  AddFormatOption(list, "schema zeroplan.hardware/1", *format);
  list.Run([format] {
    if (*format == OutputFormat::kJson) return WriteOutput("", ProfilesJson());
    WriteReport("", ListProfiles());
  });
  Command show = group.Add("show", "One profile, every number with its source");
  auto name = std::make_shared<std::string>();
  auto show_format = std::make_shared<Given<OutputFormat>>();
  AddFormatOption(show, "a profile that --hw takes", *show_format);
  show.Required("profile", "NAME|FILE",
                "A built-in profile, a JSON file (which is checked), or a built-in part: a "
                "network such as ib-400",
                *name, KnownProfilesAndNetworks);
  show.Run([name, show_format] {
    const std::string text = ProfileText(*name);
    if (*show_format == OutputFormat::kJson) return WriteOutput("", text);
    WriteReport("", FiguresText(text));
  });
  RegisterHardwareMeasure(group);
  RegisterHardwareCheck(group);
}

}  // namespace zeroplan
