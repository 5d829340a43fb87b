// Converts floats to 8-bit moments and back (core/base/dynamic8.h).
#pragma once

#include "core/base/dynamic8.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// Whether a convert launch reads or writes such blocks.
bool HasDynamic8(const KernelCall& convert);

// Fails unless `n` elements are whole blocks that are aligned in their argument.
void CheckWholeDynamic8(const KernelArg& blocks, int64_t n);

// Fails unless the convert launch is between whole blocks and fp32 and adds nothing.
void CheckConvertDynamic8(const KernelCall& convert);

namespace cpu {
// Convert for launches with HasDynamic8.
void ConvertDynamic8(const KernelCall& call);
}  // namespace cpu

}  // namespace zeroplan
