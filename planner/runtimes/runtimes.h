// The runtimes that there are.
#pragma once

#include <span>
#include <string_view>

#include "planner/runtime.h"

namespace zeroplan {

// zeroplan's own executor first.
std::span<const Runtime* const> Runtimes();
// By its key; null: there is none.
const Runtime* FindRuntime(std::string_view key);

const Runtime& DeepSpeedRuntime();
const Runtime& Fsdp2Runtime();
const Runtime& DdpRuntime();

}  // namespace zeroplan
