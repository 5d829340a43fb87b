// The CPU backend's kernels, one for each row of core/program/kernel_rows.inc, which has their
// arguments.
//
// What they keep to: nothing is allocated; only the bytes of the arguments and the pool's scratch
// are touched; results do not depend on the number of threads, since each sum is either made by one
// worker or in chunks whose cut does not depend on it.
#pragma once

#include "executor/kernels/kernel_call.h"

namespace zeroplan::cpu {

#define ZEROPLAN_KERNEL(id, ...) void id(const KernelCall& call);
#include "core/program/kernel_rows.inc"

}  // namespace zeroplan::cpu
