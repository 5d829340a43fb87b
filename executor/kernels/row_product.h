// The product of one row with a matrix: what a single token's layers are made of. Bound by reading
// the matrix, which a packed product (gemm.h) would read, write and read again.
#pragma once

#include <cstdint>

#include "executor/kernels/kernel_util.h"

namespace zeroplan {

// Whether RowProduct takes these: all that are there are fp32.
bool IsRowProduct(int64_t M, const KernelArg& a, const KernelArg& w, const KernelArg& bias,
                  const KernelArg& residual, const KernelArg& y);

// y_N = a_K * w (+ bias_N) (+ residual_N); w is [K,N], with `transposed` [N,K]. Each element is
// summed in an order that depends on K alone, whatever the number of threads. REQUIRES:
// IsRowProduct.
void RowProduct(ThreadPool& pool, int64_t N, int64_t K, const KernelArg& a, const KernelArg& w,
                bool transposed, const KernelArg& bias, const KernelArg& residual,
                const KernelArg& y);

}  // namespace zeroplan
