// GELU (tanh form) of fp32 values, for the kernels that apply it.
#pragma once

#include <cstdint>

namespace zeroplan {

// y_n = gelu(x_n). May be in place.
void Gelu(const float* x_n, int64_t n, float* y_n);
// d_n = d_in_n * gelu'(x_n). `d_n` may be `d_in_n`.
void GeluGradient(const float* x_n, const float* d_in_n, int64_t n, float* d_n);

}  // namespace zeroplan
