// Manual pages in roff (man(7)), written from what commands take.
#pragma once

#include <cstdint>
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

// Completions for shells, written from what commands take. Scripts stand alone: they name every
// command, option and known value, and do not call zeroplan, whose commands that run something are
// in a program that loads CUDA's libraries first.

enum class Shell : uint8_t { kBash, kZsh, kFish };

std::string Completion(const CommandDescription& program, Shell shell);

}  // namespace zeroplan
