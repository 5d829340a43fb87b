// GELU as x s with s = (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3),
// as on the CPU: it keeps its relative accuracy for large negative x. Where the exponential
// overflows the quotient is 0, its limit.
#pragma once

namespace zeroplan::cuda {

inline constexpr float kTwoScale = 1.5957691216057308f;  // 2 sqrt(2/pi)
inline constexpr float kCubic = 0.044715f;

// The fast exponential and quotient are off by a few units of 2^-22: nothing where results are
// rounded to 16 bits.
template <bool kExact>
__device__ inline float Gate(float x) {
  const float minus_two_u = -kTwoScale * x * (kCubic * x * x + 1.0f);
  if constexpr (kExact) {
    return 1.0f / (1.0f + expf(minus_two_u));
  } else {
    return __fdividef(1.0f, 1.0f + __expf(minus_two_u));
  }
}

template <bool kExact>
__device__ inline float Gelu(float x) {
  return x * Gate<kExact>(x);
}

}  // namespace zeroplan::cuda
