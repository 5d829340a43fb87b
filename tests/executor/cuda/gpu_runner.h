// Runs one kernel of CudaKernels() on copies of host arguments, and watches what it touches.
#pragma once

#include "executor/kernels/kernel_call.h"

namespace zeroplan::kernel_test {

// Uploads the arguments (each between guard bytes), adds the row's scratch, prepares, launches,
// waits, and copies what the kernel may write back to the host. Throws std::runtime_error naming
// kernel, argument and byte: a CUDA error, a changed guard byte, a changed input.
//
// `host`: the call as the CPU would get it, arguments in host memory, without the scratch. Of its
// context program, rank and seed are used. `fn`: run instead of the table's row, without
// preparation.
void RunOnGpu(const KernelCall& host, KernelFn fn = nullptr);

// The GPU's launch context: its stream and libraries.
CudaLaunch& TestLaunch();

// Throws std::runtime_error naming `what` if a CUDA call failed.
void CheckGpu(int error, const char* what);

}  // namespace zeroplan::kernel_test
