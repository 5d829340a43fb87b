// The logistic function of SwiGLU kernels. Where the exponential overflows the quotient is 0, its
// limit.
#pragma once

namespace zeroplan::cuda {

// As for GELU, the fast functions are exact enough where results are rounded to 16 bits.
template <bool kExact>
__device__ inline float Sigmoid(float x) {
  if constexpr (kExact) {
    return 1.0f / (1.0f + expf(-x));
  } else {
    return __fdividef(1.0f, 1.0f + __expf(-x));
  }
}

}  // namespace zeroplan::cuda
