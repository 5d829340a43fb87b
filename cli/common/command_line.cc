#include "cli/common/command_line.h"

#include <CLI/CLI.hpp>

#include "core/base/error.h"
#include "core/base/nearest_name.h"

namespace zeroplan {
namespace {

// Long names of the options, or names of the subcommands, that `app` knows.
std::vector<std::string> NamesIn(const CLI::App& app, bool options) {
  std::vector<std::string> names;
  if (!options) {
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    return names;
  }
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The command that was being parsed.
const CLI::App& Innermost(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : Innermost(*parsed.front());
}

}  // namespace

void ThrowParseError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = Innermost(app);
  std::string path = "zeroplan";
  for (const CLI::App* at = &app; at != &command;) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  std::string hint;
  for (const std::string& word : command.remaining(true)) {
    const std::string name = word.substr(0, word.find('='));
    const std::string nearest = NearestName(name, NamesIn(command, name.starts_with("-")));
    if (!nearest.empty()) hint = fmt::format("\nDid you mean {}?", nearest);
  }
  ThrowUsage("{}{}\nRun '{} --help' for what is allowed.", error.what(), hint, path);
}

void ParseCommand(const char* name, const std::function<void(Command&)>& add,
                  const std::vector<std::string>& words) {
  CLI::App app("", "zeroplan");
  app.set_help_flag();
  Command root(app);
  Command command = root.Add(name, "");
  add(command);
  command.Run([] {});
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  reversed.emplace_back(name);
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    ThrowParseError(app, error);
  }
}

std::vector<ListedOption> ListOptions(const std::function<void(Command&)>& add) {
  CLI::App app("", "zeroplan");
  app.set_help_flag();
  Command command(app);
  add(command);
  std::vector<ListedOption> listed;
  for (const CLI::Option* option : app.get_options({})) {
    std::string help = option->get_description();
    std::replace(help.begin(), help.end(), '\n', ' ');
    const bool flag = option->get_items_expected_max() == 0;
    listed.push_back({"--" + option->get_lnames().front(), flag ? "" : option->get_type_name(),
                      std::move(help)});
  }
  return listed;
}

}  // namespace zeroplan
