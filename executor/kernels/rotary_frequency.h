// The frequencies of rotary positions, and their scaling for a longer context: the formulas of
// transformers' modeling_rope_utils. Plain C++, because CUDA sources include this.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/base/host_device.h"
#include "core/model/rotary_scaling.h"

namespace zeroplan {

struct RotaryShape {
  int64_t D;
  RotaryScaling scaling;
  int64_t original_positions;  // the context before its extension
  float theta, factor, low, high;
};

// Yarn: the pair, as a real number, that makes `turns` rotations in the original context.
ZEROPLAN_HOST_DEVICE inline double YarnPair(const RotaryShape& s, double turns) {
  constexpr double kTwoPi = 6.283185307179586476925;
  return static_cast<double>(s.D) *
         log(static_cast<double>(s.original_positions) / (turns * kTwoPi)) /
         (2 * log(static_cast<double>(s.theta)));
}

// Radians by which pair i of a head rotates from one position to the next.
ZEROPLAN_HOST_DEVICE inline double RotaryFrequency(const RotaryShape& s, int64_t i) {
  constexpr double kTwoPi = 6.283185307179586476925;
  const double plain =
      pow(static_cast<double>(s.theta), -2.0 * static_cast<double>(i) / static_cast<double>(s.D));
  const double slow = plain / static_cast<double>(s.factor);
  const double low = static_cast<double>(s.low), high = static_cast<double>(s.high);
  switch (s.scaling) {
    case RotaryScaling::kNone:
      return plain;
    case RotaryScaling::kLinear:
      return slow;
    case RotaryScaling::kLlama3: {
      // Pairs with few rotations in the original context are slowed down, those with many stay.
      const double turns = static_cast<double>(s.original_positions) * plain / kTwoPi;
      if (turns < low) return slow;
      if (turns > high) return plain;
      const double smooth = (turns - low) / (high - low);
      return (1 - smooth) * slow + smooth * plain;
    }
    case RotaryScaling::kYarn: {
      // Pairs up to `first` stay, those from `last` on are slowed down, a ramp between.
      const double first = fmax(floor(YarnPair(s, high)), 0.0);
      double last = fmin(ceil(YarnPair(s, low)), static_cast<double>(s.D - 1));
      if (first == last) last += 0.001;
      const double ramp = (static_cast<double>(i) - first) / (last - first);
      const double slowed = fmin(fmax(ramp, 0.0), 1.0);
      return slow * slowed + plain * (1 - slowed);
    }
  }
  return plain;
}

}  // namespace zeroplan
