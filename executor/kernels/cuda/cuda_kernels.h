// The CUDA backend's kernels, one for each row of core/program/kernel_rows.inc, which defines their
// arguments.
//
// Rules: they allocate nothing and do not synchronise; they touch only the bytes of the arguments
// (scratch is an argument); every launch goes to KernelContext::cuda->stream; sums have a fixed
// order, so that equal inputs give equal bits (attention's backward pass through cuDNN: if
// AttentionPlans is deterministic).
#pragma once

#include "executor/kernels/kernel_call.h"

namespace zeroplan::cuda {

#define ZEROPLAN_KERNEL(id, ...) void id(const KernelCall& call);
// PrepareX chooses algorithms and builds plans for a launch of X before the first step runs it. It
// may overwrite the arguments' memory, synchronise, and allocate host memory.
#define ZEROPLAN_TUNED_KERNEL(id, ...) \
  void id(const KernelCall& call);     \
  void Prepare##id(const KernelCall& call);
#include "core/program/kernel_rows.inc"

}  // namespace zeroplan::cuda
