// Completions for shells, written from what commands take. Scripts stand alone: they name every
// command, option and known value, and do not call zeroplan, whose commands that run something are
// in a program that loads CUDA's libraries first.
#pragma once

#include <cstdint>
#include <string>

#include "cli/common/command.h"

namespace zeroplan {

enum class Shell : uint8_t { kBash, kZsh, kFish };

std::string Completion(const CommandDescription& program, Shell shell);

}  // namespace zeroplan
