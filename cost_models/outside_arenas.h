// Device memory that an engine takes beside its arenas, as far as it follows from the step program.
#pragma once

#include <cstdint>

#include "core/program/program.h"

namespace zeroplan {

struct OutsideArenas {
  int communicators = 0;     // that an engine makes (core/program/communicators.h)
  uint64_t graph_bytes = 0;  // of the CUDA graphs that it replays; 0 on the CPU backend
};

// Bytes of a captured graph, and of a launch or copy in it: least squares over what 72 random runs
// on H200s had in use beyond arenas, context and communicators (benchmarks/fidelity.py, driver of
// CUDA 13.0, which takes memory by 2 MB). 2 MB off in the mean, 7 at most.
inline constexpr uint64_t kGraphBytes = 86'000, kGraphNodeBytes = 3'700;

OutsideArenas OutsideArenasOf(const Program& program);

}  // namespace zeroplan
