// RMS norm of fp32 values, for the kernels that apply it: to rows and to heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "executor/kernels/simd.h"

namespace zeroplan {

// 1/sqrt(mean(x^2) + eps).
inline float InverseRms(const float* x_n, int64_t n, float eps) {
  simd::VecF squares{};
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    const simd::VecF x = simd::Load(x_n + i, part);  // 0 past the end
    squares += x * x;
  });
  return 1.0f / std::sqrt(simd::Sum(squares) / static_cast<float>(n) + eps);
}

// dx = (d - r * mean(d * r)) * rstd, dw += dy * r, with r = x * rstd and d = dy * w. dx may be dy.
inline void RmsNormGradient(const float* dy_n, const float* x_n, const float* w_n, float rstd,
                            int64_t n, float* dx_n, float* dw_n) {
  using simd::Load;
  using simd::Store;
  simd::VecF sum_dr{};
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    const simd::VecF r = Load(x_n + i, part) * rstd, dyr = Load(dy_n + i, part) * r;
    sum_dr += dyr * Load(w_n + i, part);
    Store(dw_n + i, Load(dw_n + i, part) + dyr, part);
  });
  const float mean_dr = simd::Sum(sum_dr) / static_cast<float>(n);
  simd::VectorLoop(n, [&](int64_t i, auto part) {
    const simd::VecF r = Load(x_n + i, part) * rstd;
    const simd::VecF d = Load(dy_n + i, part) * Load(w_n + i, part);
    Store(dx_n + i, (d - r * mean_dr) * rstd, part);
  });
}

}  // namespace zeroplan
