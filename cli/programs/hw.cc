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
#include "core/base/terminal.h"
#include "core/base/units.h"
#include "hwprofiles/loader.h"
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

std::string ListProfiles() {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "GPUS", "GPU", "MEMORY", "LINK", "NETWORK"}};
  for (const std::string& name : ProfileNames()) {
    const HardwareProfile profile = LoadProfile(name);
    const NodeProfile& node = profile.node;
    rows.push_back(
        {name, fmt::format("{:.0f}", node.gpus.value), profile.gpu.name,
         Short(profile.gpu.memory.value),
         fmt::format("{} {}/s", LinkKindName(node.link_kind), Short(node.gpu_link.value)),
         profile.network ? profile.network->name : "-"});
    if (name == kDefaultProfile) rows.back()[0] += " *";
  }
  std::string text = Table(rows), left_out;
  if (FitLines(text, TerminalColumns(STDOUT_FILENO)) != text) {
    // The names of GPUs are what may be broken, so they go last.
    for (auto& row : rows) row = {row[0], row[1], row[3], row[4], row[2]};
    text = Table(rows);
    left_out = "Left out for want of room: NETWORK; a wider terminal and --format json have it.\n";
  }
  return text + '\n' + left_out +
         Paragraph(
             fmt::format("* where --hw is left out and this machine has no GPU that is known. LINK "
                         "is one GPU's to the others, each way. Networks for --network: {}.",
                         fmt::join(NetworkNames(), ", ")),
             0);
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
         {"gpus", std::llround(node.gpus.value)},
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
               " > mine.json   (edit, then --hw ./mine.json)\n"
               "  zeroplan hw measure -o mine.json");
  Command list = group.Add("list", "Built-in profiles");
  auto format = std::make_shared<Given<OutputFormat>>();
  AddFormatOption(list, "schema zeroplan.hardware/1", *format);
  list.Run([format] {
    if (*format == OutputFormat::kJson) return WriteOutput("", ProfilesJson());
    WriteReport("", ListProfiles());
  });
  Command show = group.Add("show", "One profile as JSON, every number with its source");
  auto name = std::make_shared<std::string>();
  // There is one form alone; whoever asks every command for JSON gets it here too.
  auto only_json = std::make_shared<Given<size_t>>();
  show.Value({"Output", "--format", "json",
              "The only form; where it is given, long lines stay unbroken on a terminal too"},
             *only_json, [](const std::string& text, std::string_view option) {
               return ParseWord(text, option, {"json"});
             });
  show.Required("profile", "NAME|FILE",
                "A built-in profile, a JSON file (which is checked), or a built-in part: a "
                "network such as ib-400",
                *name, KnownProfilesAndNetworks);
  show.Run([name, only_json] {
    // Whoever did not ask for JSON reads it: long sources are broken for a terminal.
    if (only_json->has_value()) return WriteOutput("", ProfileText(*name));
    WriteReport("", ProfileText(*name));
  });
  RegisterHardwareMeasure(group);
  RegisterHardwareCheck(group);
}

}  // namespace zeroplan
