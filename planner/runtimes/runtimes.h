// The list of runtimes.
#pragma once

#include <span>
#include <string_view>

#include "planner/runtime.h"

namespace zeroplan {

// All runtimes, zeroplan's own executor first.
std::span<const Runtime* const> Runtimes();
// Finds a runtime by its key; null: there is none.
const Runtime* FindRuntime(std::string_view key);

const Runtime& DeepSpeedRuntime();
const Runtime& Fsdp2Runtime();
const Runtime& DdpRuntime();

}  // namespace zeroplan
