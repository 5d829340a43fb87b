#include "cli/common/command_line.h"

#include <CLI/CLI.hpp>

#include "core/base/error.h"
#include "core/base/strings.h"

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

// "zeroplan hw list"
std::string PathTo(const CLI::App& app, const CLI::App& command) {
  std::string path = "zeroplan";
  for (const CLI::App* at = &app; at != &command;) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  return path;
}

// What the first word is that nobody asked for, as "--modle: is no option of zeroplan plan".
std::string ExtraWord(const CLI::App& command, const std::string& path) {
  const std::vector<std::string> words = command.remaining(true);
  const std::string name = words.front().substr(0, words.front().find('='));
  const bool option = name.starts_with("-");
  const bool sub_command = !option && !command.get_subcommands({}).empty();
  const std::string nearest =
      option || sub_command ? NearestName(name, NamesIn(command, option)) : "";
  return fmt::format("{}: {}{}", name,
                     option        ? fmt::format("is no option of '{}'", path)
                     : sub_command ? fmt::format("is no command of '{}'", path)
                                   : "was not expected",
                     nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

}  // namespace

void ThrowUnknownCommand(const CLI::App& app) {
  const CLI::App& command = Innermost(app);
  const std::vector<std::string> words = command.remaining(true);
  if (words.empty() || words.front().starts_with("-")) return;
  if (command.get_subcommands({}).empty()) return;
  const std::string path = PathTo(app, command);
  ThrowUsage("{}\nRun '{} --help' for what is allowed.", ExtraWord(command, path), path);
}

void ThrowParseError(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = Innermost(app);
  const std::string path = PathTo(app, command);
  const std::string what =
      command.remaining(true).empty() ? error.what() : ExtraWord(command, path);
  ThrowUsage("{}\nRun '{} --help' for what is allowed.", what, path);
}

}  // namespace zeroplan
