#include <algorithm>

#include "executor/kernels/gemm.h"
#include "executor/kernels/simd.h"

namespace zeroplan {
namespace {

using simd::Load;
using simd::Splat;
using simd::Store;
using simd::VecF;

// Columns that a thread takes at a time. Their sums stay in the first-level cache while rows of the
// matrix go by.
constexpr int64_t kColumns = 512;

float Dot(const float* a, const float* b, int64_t n) {
  // Four sums at once: one would wait for each addition before.
  constexpr int64_t kStep = 4 * simd::kLanes;
  VecF sum[4] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (int64_t s = 0; s < 4; ++s) {
      const int64_t at = i + s * simd::kLanes;
      sum[s] += Load(a + at) * Load(b + at);
    }
  }
  float rest = 0;
  for (; i < n; ++i) rest += a[i] * b[i];
  return simd::Sum((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

}  // namespace

bool IsRowProduct(int64_t M, const KernelArg& a, const KernelArg& w, const KernelArg& bias,
                  const KernelArg& residual, const KernelArg& y) {
  const auto is_float = [](const KernelArg& arg) {
    return !Present(arg) || arg.dtype == Dtype::kF32;
  };
  return M == 1 && is_float(a) && is_float(w) && is_float(bias) && is_float(residual) &&
         is_float(y);
}

void RowProduct(ThreadPool& pool, int64_t N, int64_t K, const KernelArg& a, const KernelArg& w,
                bool transposed, const KernelArg& bias, const KernelArg& residual,
                const KernelArg& y) {
  const auto *a_K = a.as<const float>(), *w_data = w.as<const float>();
  const float* bias_N = Present(bias) ? bias.as<const float>() : nullptr;
  const float* residual_N = Present(residual) ? residual.as<const float>() : nullptr;
  auto* y_N = y.as<float>();
  const int64_t blocks = (N + kColumns - 1) / kColumns;
  pool.ParallelFor(blocks, 1, [&](int64_t begin, int64_t end, int) {
    alignas(64) float sum[kColumns];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t n0 = block * kColumns, count = std::min(kColumns, N - n0);
      if (transposed) {
        for (int64_t n = 0; n < count; ++n) sum[n] = Dot(a_K, w_data + (n0 + n) * K, K);
      } else {
        std::fill(sum, sum + count, 0.0f);
        for (int64_t k = 0; k < K; ++k) {
          const float* row = w_data + k * N + n0;
          const float factor = a_K[k];
          simd::VectorLoop(count, [&](int64_t i, auto part) {
            Store(sum + i, Load(sum + i, part) + Load(row + i, part) * factor, part);
          });
        }
      }
      for (int64_t n = 0; n < count; ++n) {
        float value = sum[n];
        if (bias_N != nullptr) value += bias_N[n0 + n];
        if (residual_N != nullptr) value += residual_N[n0 + n];
        y_N[n0 + n] = value;
      }
    }
  });
}

}  // namespace zeroplan
