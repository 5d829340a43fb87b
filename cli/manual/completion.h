// Completions for shells, written from what commands take. Scripts stand alone: they name every
// command, option and known value, and do not call zeroplan.
#pragma once

#include <cstdint>
#include <string>

#include "cli/common/command_description.h"

namespace zeroplan {

enum class Shell : uint8_t { kBash, kZsh, kFish };

std::string Completion(const CommandDescription& program, Shell shell);

// One for each shell.
std::string BashCompletion(const CommandDescription& program);
std::string ZshCompletion(const CommandDescription& program);
std::string FishCompletion(const CommandDescription& program);

}  // namespace zeroplan
