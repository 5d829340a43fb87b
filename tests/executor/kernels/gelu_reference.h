// GELU (tanh form) and its derivative in double, by libm.
#pragma once

#include <cmath>
#include <numbers>

namespace zeroplan::kernel_test {

inline double Gelu(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(u));
}
inline double GeluSlope(double x) {
  const double scale = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(scale * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x);
}

}  // namespace zeroplan::kernel_test
