// zeroplan hw list|show: the hardware profiles and where their numbers come from.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/app.h"
#include "cli/output.h"
#include "hwprofiles/loader.h"

namespace zeroplan {
namespace {

std::string ListProfiles() {
  std::string text;
  for (const std::string& name : ProfileNames()) {
    text += fmt::format("{:<18} {}{}\n", name, LoadProfile(name).description,
                        name == kDefaultProfile ? " (default)" : "");
  }
  return text;
}

}  // namespace

void RegisterHardware(CLI::App& app) {
  CLI::App* command = app.add_subcommand("hw", "Hardware profiles");
  command->require_subcommand(1);
  command->footer("Examples:\n  zeroplan hw list\n  zeroplan hw show " +
                  std::string(kDefaultProfile) + " > mine.json   (edit, then --hw ./mine.json)");
  CLI::App* list = command->add_subcommand("list", "Built-in profiles");
  list->callback([] { WriteOutput("", ListProfiles()); });
  CLI::App* show =
      command->add_subcommand("show", "One profile as JSON, every number with its source");
  auto name = std::make_shared<std::string>();
  show->add_option("profile", *name, "A built-in profile or a JSON file (which is checked)")
      ->type_name("NAME|FILE")
      ->required();
  show->callback([name] {
    LoadProfile(*name);
    WriteOutput("", ProfileText(*name));
  });
}

}  // namespace zeroplan
