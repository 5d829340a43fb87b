// Causal attention in double, whole rows of scores at a time, and its backward pass by the
// formulas. Legend: B micro-batch, T sequence, C hidden, H heads, D = C/H.
#pragma once

#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {

struct AttentionShape {
  int64_t B, T, C, H;
};

// Returns out_BTC; lse_BHT too if asked.
inline Doubles Attention(const AttentionShape& s, const Doubles& qkv, Doubles* lse = nullptr) {
  const int64_t D = s.C / s.H;
  Doubles out(static_cast<size_t>(s.B * s.T * s.C));
  if (lse != nullptr) lse->assign(static_cast<size_t>(s.B * s.H * s.T), 0);
  const auto at = [&](int64_t b, int64_t t, int64_t part, int64_t h, int64_t d) {
    return qkv[static_cast<size_t>((b * s.T + t) * 3 * s.C + part * s.C + h * D + d)];
  };
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t q = 0; q < s.T; ++q) {
        Doubles p;
        double sum = 0;
        for (int64_t k = 0; k <= q; ++k) {
          double score = 0;
          for (int64_t d = 0; d < D; ++d) score += at(b, q, 0, h, d) * at(b, k, 1, h, d);
          p.push_back(std::exp(score / std::sqrt(static_cast<double>(D))));
          sum += p.back();
        }
        for (int64_t d = 0; d < D; ++d) {
          double value = 0;
          for (int64_t k = 0; k <= q; ++k) value += p[static_cast<size_t>(k)] * at(b, k, 2, h, d);
          out[static_cast<size_t>((b * s.T + q) * s.C + h * D + d)] = value / sum;
        }
        if (lse != nullptr) (*lse)[static_cast<size_t>((b * s.H + h) * s.T + q)] = std::log(sum);
      }
    }
  }
  return out;
}

// [B, H, T, T], 0 above the diagonal.
inline Doubles AttentionProbs(const AttentionShape& s, const Doubles& qkv) {
  const int64_t D = s.C / s.H;
  Doubles probs(static_cast<size_t>(s.B * s.H * s.T * s.T));
  for (int64_t head = 0; head < s.B * s.H; ++head) {
    const int64_t first = head / s.H * s.T * 3 * s.C + head % s.H * D;
    for (int64_t q = 0; q < s.T; ++q) {
      double* row = probs.data() + (head * s.T + q) * s.T;
      double sum = 0;
      for (int64_t k = 0; k <= q; ++k) {
        const double* query = qkv.data() + first + q * 3 * s.C;
        const double* key = qkv.data() + first + k * 3 * s.C + s.C;
        double score = 0;
        for (int64_t d = 0; d < D; ++d) score += query[d] * key[d];
        sum += row[k] = std::exp(score / std::sqrt(static_cast<double>(D)));
      }
      for (int64_t k = 0; k <= q; ++k) row[k] /= sum;
    }
  }
  return probs;
}

// dqkv_BT3C given the probabilities, which need not be exact: a kernel's own, rounded ones.
inline Doubles AttentionGradient(const AttentionShape& s, const Doubles& qkv, const Doubles& probs,
                                 const Doubles& dout) {
  const int64_t D = s.C / s.H;
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  Doubles dqkv(qkv.size()), ds(static_cast<size_t>(s.T));
  for (int64_t head = 0; head < s.B * s.H; ++head) {
    const int64_t first = head / s.H * s.T * 3 * s.C + head % s.H * D;
    for (int64_t q = 0; q < s.T; ++q) {
      const double* p = probs.data() + (head * s.T + q) * s.T;
      const double* dout_D = dout.data() + (head / s.H * s.T + q) * s.C + head % s.H * D;
      const int64_t query = first + q * 3 * s.C;
      double delta = 0;
      for (int64_t k = 0; k <= q; ++k) {
        const int64_t value = first + k * 3 * s.C + 2 * s.C;
        double dp = 0;
        for (int64_t d = 0; d < D; ++d) {
          dp += dout_D[d] * qkv[static_cast<size_t>(value + d)];
          dqkv[static_cast<size_t>(value + d)] += p[k] * dout_D[d];
        }
        ds[static_cast<size_t>(k)] = dp;
        delta += p[k] * dp;
      }
      for (int64_t k = 0; k <= q; ++k) {
        const double dscore = scale * p[k] * (ds[static_cast<size_t>(k)] - delta);
        const int64_t key = first + k * 3 * s.C + s.C;
        for (int64_t d = 0; d < D; ++d) {
          const auto at_q = static_cast<size_t>(query + d), at_k = static_cast<size_t>(key + d);
          dqkv[at_q] += dscore * qkv[at_k];
          dqkv[at_k] += dscore * qkv[at_q];
        }
      }
    }
  }
  return dqkv;
}

}  // namespace zeroplan::kernel_test
