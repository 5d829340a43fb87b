// The CUDA backend's kernels, one for each row of core/program/kernel_rows.inc, which has their
// arguments.
//
// What they keep to: nothing is allocated and nothing synchronises; only the bytes of the arguments
// are touched (scratch is an argument); every launch goes to KernelContext::cuda->stream; sums have
// a fixed order, so that the same inputs give the same bits (attention's backward pass through
// cuDNN: where AttentionPlans was made deterministic).
#pragma once

#include "executor/kernels/kernel_call.h"

namespace zeroplan::cuda {

#define ZEROPLAN_KERNEL(id, ...) void id(const KernelCall& call);
// PrepareX chooses algorithms and builds plans for a launch of X before the first step runs it. The
// arguments' memory is its to scribble on; it may synchronise and allocate host memory.
#define ZEROPLAN_TUNED_KERNEL(id, ...) \
  void id(const KernelCall& call);     \
  void Prepare##id(const KernelCall& call);
#include "core/program/kernel_rows.inc"

}  // namespace zeroplan::cuda
