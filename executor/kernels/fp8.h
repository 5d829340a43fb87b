// Largest magnitudes on the CPU, for the kernels that take them along.
#pragma once

#include <cstdint>

#include "executor/kernels/kernel_util.h"

namespace zeroplan {

// amax = the larger of it and the largest |x_n|, as the rows' comment has it; nothing where amax is
// absent. Reads x anew: on the CPU a second pass over what was just written costs little.
void RaiseMagnitude(ThreadPool& pool, const KernelArg& x_n, int64_t n, const KernelArg& amax);

}  // namespace zeroplan
