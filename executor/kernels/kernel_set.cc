// The only symbol that a level's objects export. It is data without code to initialise it, so that
// reading it runs none of the level's instructions.
#include "executor/kernels/convert.h"
#include "executor/kernels/cpu_kernels.h"
#include "executor/kernels/cpu_levels.h"

extern "C" {
extern const zeroplan::CpuKernelSet ZEROPLAN_KERNEL_SET;  // levels.cmake

constinit const zeroplan::CpuKernelSet ZEROPLAN_KERNEL_SET = {
    .rows =
        {
#define ZEROPLAN_KERNEL(id, ...) zeroplan::cpu::id,
#include "core/program/kernel_rows.inc"
        },
    .adam = &zeroplan::kAdamLoops,
    .widen = zeroplan::Widen,
    .narrow = zeroplan::Narrow,
    .narrow_half_away = zeroplan::NarrowHalfAway,
};
}
