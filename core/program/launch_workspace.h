// Scratch memory that a program sets aside for one launch.
#pragma once

#include <cstdint>

#include "core/program/kernel.h"

namespace zeroplan {

// In bytes; 0: none. Of most kernels what their row says. That of attention depends on the launch
// too: `documents`, whether it is told where documents start, and on whether the program is
// `deterministic`.
uint64_t LaunchWorkspaceBytes(KernelId kernel, const KernelDims& dims, Backend backend,
                              bool documents, bool deterministic);

}  // namespace zeroplan
