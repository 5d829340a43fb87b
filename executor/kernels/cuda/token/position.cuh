// Where a token is in its text.
#pragma once

#include "core/program/step_state.h"
#include "executor/kernels/cuda/device_util.cuh"

namespace zeroplan::cuda {

__device__ inline int64_t PositionOf(const StepState* state, int64_t rows) {
  const int64_t position = state->position;
  if (position < 0 || position >= rows) FailIndex("position", position, 0, rows);
  return position;
}

}  // namespace zeroplan::cuda
