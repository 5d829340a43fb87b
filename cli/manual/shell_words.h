// What the scripts of all shells are made of.
#pragma once

#include <string>
#include <vector>

#include "cli/common/command_description.h"
#include "cli/manual/man_page.h"

namespace zeroplan {

// What goes behind an option: "none", "one" value, "several", or "maybe" one.
const char* TakesWord(const OptionDescription& option);
// Which paths are offered: "" (none), "folders" or "files" (and the folders to them).
const char* PathsWord(const Offers& offers);

// "hw list": the command's path without the program; "" of the program itself.
std::string PathBelow(const CommandPath& path);

// What has no name before it, and what is offered there: the commands below, or for a positional
// its values.
struct Unnamed {
  Offers offers;
  const char* takes;
};
Unnamed UnnamedOf(const CommandDescription& command);

// Shell functions that bash and zsh understand alike:
//   _zeroplan_below COMMAND WORD   succeeds where WORD is a command below COMMAND (a PathBelow)
//   _zeroplan_offers COMMAND NAME  sets offered (words), paths (a PathsWord) and takes (a
//   TakesWord)
//                                  to what goes behind the option NAME, or, where that is empty,
//                                  to what has no name before it; all empty where NAME is unknown
std::string TableOfOffers(const CommandDescription& program);

// "a b c"
std::string Joined(const std::vector<std::string>& words);

}  // namespace zeroplan
