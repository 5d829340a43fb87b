// Converts floats to blocks of int8 or int4 and back (core/base/int_blocks.h), and sums such
// blocks. Every backend makes the same bytes, except that NaNs may have different bits.
#pragma once

#include "core/base/int_blocks.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

// Whether a convert launch reads or writes such blocks.
bool HasIntBlocks(const KernelCall& convert);

// Fails unless the convert launch is between blocks and a float dtype, adds nothing, has whole
// blocks, and the blocks are aligned in their argument.
void CheckConvertIntBlocks(const KernelCall& convert);
// The same for a sum_parts launch: parts in blocks; dst a float dtype, or blocks of the same kind
// without accumulation.
void CheckSumParts(const KernelCall& sum);

namespace cpu {
// Convert for launches with HasIntBlocks.
void ConvertIntBlocks(const KernelCall& call);
}  // namespace cpu

}  // namespace zeroplan
