// RMS norm in double. Legend: M rows, C channels.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace zeroplan::kernel_test {

// y = x * rstd * w; appends to `rstd`, if any.
inline std::vector<double> RmsNorm(int64_t M, int64_t C, const std::vector<double>& x,
                                   const std::vector<double>& w, double eps,
                                   std::vector<double>* rstd = nullptr) {
  std::vector<double> y(x.size());
  for (int64_t m = 0; m < M; ++m) {
    double mean_square = 0;
    const double* row = x.data() + m * C;
    for (int64_t c = 0; c < C; ++c) mean_square += row[c] * row[c] / static_cast<double>(C);
    const double inverse = 1 / std::sqrt(mean_square + eps);
    for (int64_t c = 0; c < C; ++c) {
      y[static_cast<size_t>(m * C + c)] = row[c] * inverse * w[static_cast<size_t>(c)];
    }
    if (rstd != nullptr) rstd->push_back(inverse);
  }
  return y;
}

struct RmsNormGradients {
  std::vector<double> dx, dw;
};

// dx = rstd * (d - n * mean(d * n)), dw = sum of dy * n; n = x * rstd, d = dy * w.
inline RmsNormGradients RmsNormBackward(int64_t M, int64_t C, const std::vector<double>& dy,
                                        const std::vector<double>& x, const std::vector<double>& w,
                                        double eps) {
  RmsNormGradients g{std::vector<double>(x.size()), std::vector<double>(w.size())};
  std::vector<double> rstd;
  RmsNorm(M, C, x, w, eps, &rstd);
  for (int64_t m = 0; m < M; ++m) {
    const double inverse = rstd[static_cast<size_t>(m)];
    double mean = 0;
    for (int64_t c = 0; c < C; ++c) {
      const auto i = static_cast<size_t>(m * C + c), k = static_cast<size_t>(c);
      mean += dy[i] * w[k] * x[i] * inverse / static_cast<double>(C);
      g.dw[k] += dy[i] * x[i] * inverse;
    }
    for (int64_t c = 0; c < C; ++c) {
      const auto i = static_cast<size_t>(m * C + c), k = static_cast<size_t>(c);
      g.dx[i] = inverse * (dy[i] * w[k] - x[i] * inverse * mean);
    }
  }
  return g;
}

}  // namespace zeroplan::kernel_test
