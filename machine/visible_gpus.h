// Which GPUs the environment lets detection see.
#pragma once

#include <optional>
#include <vector>

namespace zeroplan {

// Whether the user wants no detection: ZEROPLAN_NO_DETECT=1.
bool DetectionIsOff();

// Indices that CUDA_VISIBLE_DEVICES leaves, in its order; nothing if it is not set or names devices
// by something else than an index.
std::optional<std::vector<unsigned>> VisibleDevices();

}  // namespace zeroplan
