// The CPU backend's kernels, one for each row of core/program/kernel_rows.inc, which defines their
// arguments.
//
// Rules: they allocate nothing; they touch only the bytes of the arguments and the pool's scratch;
// results do not depend on the number of threads, because each sum is made either by one worker or
// in chunks whose split does not depend on it.
#pragma once

#include "executor/kernels/kernel_call.h"

namespace zeroplan::cpu {

#define ZEROPLAN_KERNEL(id, ...) void id(const KernelCall& call);
#include "core/program/kernel_rows.inc"

}  // namespace zeroplan::cpu
