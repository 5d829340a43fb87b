// --backend of train and generate.
#pragma once

#include "cli/common/command.h"
#include "core/program/program.h"

namespace zeroplan {

enum class BackendChoice : uint8_t { kCpu, kCuda, kAuto };

bool BuiltWithCuda();

// The option's value, and for "auto" or without it what this build and this machine have. Throws
// Error(kUsage) for cuda in a build without it; `cpu_does` says what cpu does instead.
Backend ChooseBackend(const Option<BackendChoice>& choice, std::string_view cpu_does);

}  // namespace zeroplan
