// Floats to blocks of int8 or int4 and back (core/base/int_blocks.h), and sums of such blocks.
// Every backend makes the same bytes, NaN apart, of which only that they are NaN is the same.
#pragma once

#include "core/base/int_blocks.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// Whether a convert launch reads or writes such blocks.
bool HasIntBlocks(const KernelCall& convert);

// Fails unless the convert launch is between blocks and a float dtype, adds nothing, has whole
// blocks, and these lie aligned in their argument.
void CheckConvertIntBlocks(const KernelCall& convert);
// The same of a sum_parts launch: parts in blocks; dst a float dtype, or blocks of the same kind
// that nothing is added to.
void CheckSumParts(const KernelCall& sum);

namespace cpu {
// Convert where HasIntBlocks.
void ConvertIntBlocks(const KernelCall& call);
}  // namespace cpu

}  // namespace zeroplan
