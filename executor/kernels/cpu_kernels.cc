#include "executor/kernels/cpu_kernels.h"

namespace zeroplan {
namespace {

constinit KernelTable g_table = {.rows = {
#define ZEROPLAN_KERNEL(id, ...) cpu::id,
#include "core/program/kernel_rows.inc"
                                 }};

}  // namespace

const KernelTable& CpuKernels() { return g_table; }

void SetExtraCpuKernel(KernelFn fn) { g_table.rows.back() = fn; }

}  // namespace zeroplan
