// Options shared by commands that run something: --backend, numbers.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "cli/common/command.h"
#include "cli/common/executor_commands.h"
#include "core/program/program.h"

namespace zeroplan {

bool BuiltWithCuda();

// The option's value, or, for "auto" or without it, the best backend of this build and this
// machine. Throws Error(kUsage) for cuda in a build without it; `cpu_does` describes what cpu does
// instead.
Backend ChooseBackend(const Given<BackendChoice>& choice, std::string_view cpu_does);
// Throws Error(kRuntime) if `ranks` ranks of it cannot run on this machine for the lack of a driver
// or a library: names it, and the command that gets it.
void RequireBackend(Backend backend, int ranks);

// Throws Error(kUsage) if `option`, which is for GPUs only, was given (`text` is not empty) and
// `backend` is the CPU.
void RefuseOnCpu(Backend backend, const char* option, const std::string& text);

// Parses a number for which `allowed` holds; `use` describes the allowed ones to the user.
std::function<double(const std::string& text, std::string_view option)> NumberWhere(
    bool (*allowed)(double), const char* use);

}  // namespace zeroplan
