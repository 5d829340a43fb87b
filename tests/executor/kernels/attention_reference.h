// Causal attention in double, whole rows of scores at a time, and its backward pass by the
// formulas. Legend: B micro-batch, T sequence, H heads of queries, G of keys and values, D head
// size.
#pragma once

#include "executor/kernels/attention_dims.h"
#include "tests/executor/kernels/kernel_harness.h"

namespace zeroplan::kernel_test {

struct AttentionShape : AttentionDims {
  AttentionShape(int64_t b, int64_t t, int64_t h, int64_t g, int64_t d)
      : AttentionDims{b, t, h, g, d} {}
  KernelDims dims() const { return {B, T, H, G, D}; }
  int64_t qkv_size() const { return B * T * QkvRow(); }
  int64_t out_size() const { return B * T * OutRow(); }
  // Elements of qkv where a token's head h of queries begins, and the keys and values it meets.
  int64_t Query(int64_t b, int64_t t, int64_t h) const { return Row(b, t) + QueryColumn(h); }
  int64_t Key(int64_t b, int64_t t, int64_t h) const {
    return Row(b, t) + KeyColumn(h / Sharing());
  }
  int64_t Value(int64_t b, int64_t t, int64_t h) const {
    return Row(b, t) + ValueColumn(h / Sharing());
  }
  int64_t Row(int64_t b, int64_t t) const { return (b * T + t) * QkvRow(); }
  // Elements of out and of the probabilities.
  int64_t Out(int64_t b, int64_t t, int64_t h) const { return (b * T + t) * OutRow() + h * D; }
  int64_t Probs(int64_t b, int64_t h, int64_t q) const { return ((b * H + h) * T + q) * T; }
};

inline double Dot(const Doubles& a, int64_t at_a, const Doubles& b, int64_t at_b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += a[static_cast<size_t>(at_a + i)] * b[static_cast<size_t>(at_b + i)];
  }
  return sum;
}

// fn(b, h, q) for every query.
template <typename Fn>
void ForEachQuery(const AttentionShape& s, Fn&& fn) {
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t q = 0; q < s.T; ++q) fn(b, h, q);
    }
  }
}

// The probabilities of a query's keys, up to its own; `*lse`: the logarithm of their sum.
inline Doubles QueryProbs(const AttentionShape& s, const Doubles& qkv, int64_t b, int64_t h,
                          int64_t q, double* lse) {
  Doubles p;
  double sum = 0;
  for (int64_t k = 0; k <= q; ++k) {
    const double score = Dot(qkv, s.Query(b, q, h), qkv, s.Key(b, k, h), s.D);
    p.push_back(std::exp(score / std::sqrt(static_cast<double>(s.D))));
    sum += p.back();
  }
  for (double& value : p) value /= sum;
  *lse = std::log(sum);
  return p;
}

// Returns out_BTHD; lse_BHT too if asked.
inline Doubles Attention(const AttentionShape& s, const Doubles& qkv, Doubles* lse = nullptr) {
  Doubles out(static_cast<size_t>(s.out_size()));
  if (lse != nullptr) lse->assign(static_cast<size_t>(s.B * s.H * s.T), 0);
  ForEachQuery(s, [&](int64_t b, int64_t h, int64_t q) {
    double log_sum = 0;
    const Doubles p = QueryProbs(s, qkv, b, h, q, &log_sum);
    if (lse != nullptr) (*lse)[static_cast<size_t>((b * s.H + h) * s.T + q)] = log_sum;
    for (int64_t k = 0; k <= q; ++k) {
      for (int64_t d = 0; d < s.D; ++d) {
        out[static_cast<size_t>(s.Out(b, q, h) + d)] +=
            p[static_cast<size_t>(k)] * qkv[static_cast<size_t>(s.Value(b, k, h) + d)];
      }
    }
  });
  return out;
}

// [B, H, T, T], 0 above the diagonal.
inline Doubles AttentionProbs(const AttentionShape& s, const Doubles& qkv) {
  Doubles probs(static_cast<size_t>(s.B * s.H * s.T * s.T));
  ForEachQuery(s, [&](int64_t b, int64_t h, int64_t q) {
    double unused = 0;
    const Doubles p = QueryProbs(s, qkv, b, h, q, &unused);
    std::copy(p.begin(), p.end(), probs.begin() + s.Probs(b, h, q));
  });
  return probs;
}

// dqkv_BTN given the probabilities, which need not be exact: a kernel's own, rounded ones.
// `stored`: the output as it was stored, rounded, where the kernel multiplies dout with that.
inline Doubles AttentionGradient(const AttentionShape& s, const Doubles& qkv, const Doubles& probs,
                                 const Doubles& dout, const Doubles* stored = nullptr) {
  const double scale = 1 / std::sqrt(static_cast<double>(s.D));
  Doubles dqkv(qkv.size()), dp(static_cast<size_t>(s.T));
  ForEachQuery(s, [&](int64_t b, int64_t h, int64_t q) {
    const double* p = probs.data() + s.Probs(b, h, q);
    const int64_t out = s.Out(b, q, h), query = s.Query(b, q, h);
    double delta = 0;
    for (int64_t k = 0; k <= q; ++k) {
      const int64_t value = s.Value(b, k, h);
      dp[static_cast<size_t>(k)] = Dot(dout, out, qkv, value, s.D);
      delta += p[k] * dp[static_cast<size_t>(k)];
      for (int64_t d = 0; d < s.D; ++d) {
        dqkv[static_cast<size_t>(value + d)] += p[k] * dout[static_cast<size_t>(out + d)];
      }
    }
    if (stored != nullptr) delta = Dot(dout, out, *stored, out, s.D);
    for (int64_t k = 0; k <= q; ++k) {
      const double dscore = scale * p[k] * (dp[static_cast<size_t>(k)] - delta);
      for (int64_t d = 0; d < s.D; ++d) {
        const auto at_q = static_cast<size_t>(query + d),
                   at_k = static_cast<size_t>(s.Key(b, k, h) + d);
        dqkv[at_q] += dscore * qkv[at_k];
        dqkv[at_k] += dscore * qkv[at_q];
      }
    }
  });
  return dqkv;
}

}  // namespace zeroplan::kernel_test
