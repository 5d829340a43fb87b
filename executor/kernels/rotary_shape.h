// The frequencies in a launch of a rotary kernel.
#pragma once

#include <cstdint>

#include "executor/kernels/kernel_call.h"
#include "executor/kernels/rotary_frequency.h"

namespace zeroplan {

// `scaling` and `original_positions` are dims of the launch, whose indices differ by row; the rest
// are its scalars: theta, factor, low and high (the fifth, the attention factor, is no part of it).
inline RotaryShape RotaryShapeOf(const KernelCall& call, int64_t D, int64_t scaling,
                                 int64_t original_positions) {
  const auto [theta, factor, low, high, attention_factor] = call.scalars;
  return {.D = D,
          .scaling = static_cast<RotaryScaling>(scaling),
          .original_positions = original_positions,
          .theta = theta,
          .factor = factor,
          .low = low,
          .high = high};
}

}  // namespace zeroplan
