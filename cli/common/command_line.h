// Words to options, without a program around them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/common/command.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace zeroplan {

// Throws Error(kUsage) that says what was wrong with a command line, what was meant and which help
// to read. REQUIRES: parsing `app` threw `error`.
[[noreturn]] void ThrowParseError(const CLI::App& app, const CLI::ParseError& error);

// Throws Error(kUsage) if a command was given that is none. REQUIRES: `app` was parsed, or parsing
// it ended at --help.
void ThrowUnknownCommand(const CLI::App& app);

// Reads `words`, such as "--gpus=8", as the command `name` would that has the options that `add`
// adds. Throws Error(kUsage) with the messages of that command.
void ParseCommand(const char* name, const std::function<void(Command&)>& add,
                  const std::vector<std::string>& words);

struct ListedOption {
  std::string name;  // "--gpus"
  std::string type;  // "COUNT"; empty: a flag
  std::string help;
};
// The options that `add` adds, in their order.
std::vector<ListedOption> ListOptions(const std::function<void(Command&)>& add);

}  // namespace zeroplan
