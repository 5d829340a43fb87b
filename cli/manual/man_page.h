// Manual pages in roff (man(7)), written from what commands take.
#pragma once

#include <string>
#include <vector>

#include "cli/common/command.h"

namespace zeroplan {

// The commands from the program down to one of its commands.
using CommandPath = std::vector<const CommandDescription*>;

// The program's path and those of all commands that help shows, depth first.
std::vector<CommandPath> ShownPaths(const CommandDescription& program);

// "zeroplan-hw-list" of zeroplan hw list. Its file ends in ".1".
std::string ManPageName(const CommandPath& path);

// `date`: of the sources, "2026-11-23", or empty where it is not known. REQUIRES: `path` is not
// empty.
std::string ManPage(const CommandPath& path, const std::string& date);

}  // namespace zeroplan
