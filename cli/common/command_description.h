// What commands take, as plain values. Command fills them in as options are added; man pages
// (cli/manual/man_page.h) and shell completions (cli/manual/completion.h) are written from them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "planner/request/fields.h"

namespace zeroplan {

struct OptionDescription {
  std::string group;               // heading in the help
  std::vector<std::string> names;  // {"-o", "--output"}; of what has no name before it: {"plan"}
  std::string type;                // of the value: "FILE", "cpu|cuda|auto"; empty: takes none
  std::string help;                // one paragraph
  bool required = false;
  bool several = false;  // values, one word each
  bool alone = false;    // may be given without its value
  KnownNames known = nullptr;

  bool positional() const { return !names.front().starts_with('-'); }
  bool takes_value() const { return !type.empty(); }
};

// What a shell can offer for a value.
struct Offers {
  std::vector<std::string> words;  // of the type ("cpu|cuda|auto": three) and the known names
  bool files = false, folders = false;

  bool none() const { return words.empty() && !files && !folders; }
};

// Read off the option's type: parts between | in small letters or digits are words; FILE,
// FILE.json, PATH and PLAN are files, DIR and PATH folders; other parts (COUNT, NAME) stand for
// something that is not known. With the known names.
Offers OffersOf(const OptionDescription& option);

struct CommandDescription {
  std::string name;
  std::string help;    // one line
  std::string footer;  // "Examples:", indented lines, then text
  bool hidden = false;
  std::vector<OptionDescription> options;
  std::vector<std::shared_ptr<const CommandDescription>> commands;  // below it
};

// The commands below `command` that help shows.
std::vector<const CommandDescription*> ShownCommands(const CommandDescription& command);

}  // namespace zeroplan
