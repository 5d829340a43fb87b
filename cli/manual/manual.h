// Manual pages in roff (man(7)), generated from the descriptions of commands.
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

// "zeroplan-hw-list" for zeroplan hw list. Its file ends in ".1".
std::string ManPageName(const CommandPath& path);

// `date`: of the sources, "2026-11-23", or empty if unknown. REQUIRES: `path` is not empty.
std::string ManPage(const CommandPath& path, const std::string& date);

// Completions for shells, generated from the descriptions of commands. Scripts are self-contained:
// they name every command, option and known value, and do not call zeroplan, because its commands
// that run something are in a program that loads CUDA's libraries first.

enum class Shell : uint8_t { kBash, kZsh, kFish };

std::string Completion(const CommandDescription& program, Shell shell);

}  // namespace zeroplan
