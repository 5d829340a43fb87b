#include "executor/kernels/cuda/cuda_kernels.h"

namespace zeroplan {
namespace {

constinit KernelTable g_table = {.rows =
                                     {
#define ZEROPLAN_KERNEL(id, ...) cuda::id,
#include "core/program/kernel_rows.inc"
                                     },
                                 .prepare = {
#define ZEROPLAN_KERNEL(id, ...) nullptr,
#define ZEROPLAN_TUNED_KERNEL(id, ...) cuda::Prepare##id,
#include "core/program/kernel_rows.inc"
                                 }};

}  // namespace

const KernelTable& CudaKernels() { return g_table; }

void SetExtraCudaKernel(KernelFn fn, KernelFn prepare) {
  g_table.rows.back() = fn;
  g_table.prepare.back() = prepare;
}

}  // namespace zeroplan
