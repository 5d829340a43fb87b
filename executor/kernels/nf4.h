// Converts fp32 to NF4 and NF4 to the float dtypes (core/base/nf4.h), a block at a time, and checks
// launches of convert kernels with NF4 for both backends. Every backend makes the same bytes of
// finite numbers.
#pragma once

#include <cstdint>

#include "core/base/nf4.h"
#include "executor/kernels/kernel_call.h"

namespace zeroplan {

inline int64_t Nf4Blocks(int64_t elements) { return (elements + kNf4Block - 1) / kNf4Block; }

// block = x_n in NF4; elements past n count as 0. A NaN does not affect the maximum. REQUIRES: 1 <=
// n <= kNf4Block.
void QuantizeNf4(const float* x_n, int64_t n, Nf4Block& block);

// dst_n = the first n elements of block, rounded to nearest even. REQUIRES: 1 <= n <= kNf4Block;
// dtype is kF32, kBF16 or kF16.
void DequantizeNf4(const Nf4Block& block, int64_t n, Dtype dtype, void* dst_n);

// Whether a convert launch reads or writes NF4.
bool HasNf4(const KernelCall& convert);

// Fails unless the launch writes (never adds) fp32 as NF4 or NF4 as a float dtype, and the blocks
// are aligned and whole in their argument.
void CheckNf4(const KernelCall& convert);

namespace cpu {
// Convert for launches with HasNf4.
void ConvertNf4(const KernelCall& call);
}  // namespace cpu

}  // namespace zeroplan
