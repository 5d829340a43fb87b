// Options that commands share which run something: --backend, numbers.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cli/common/command.h"
#include "cli/common/executor_commands.h"
#include "core/program/program.h"

namespace zeroplan {

bool BuiltWithCuda();

// The option's value, and for "auto" or without it what this build and this machine have. Throws
// Error(kUsage) for cuda in a build without it; `cpu_does` says what cpu does instead.
Backend ChooseBackend(const Given<BackendChoice>& choice, std::string_view cpu_does);

// Throws Error(kUsage) where `option`, of GPUs alone, was given (`text` is not empty) and `backend`
// is the CPU.
void RefuseOnCpu(Backend backend, const char* option, const std::string& text);

// Parses a number for which `allowed` holds; `use` tells the user which those are.
std::function<double(const std::string& text, std::string_view option)> NumberWhere(
    bool (*allowed)(double), const char* use);

}  // namespace zeroplan
