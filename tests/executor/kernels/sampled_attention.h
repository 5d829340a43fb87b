// Attention at the sizes that models train at, where a whole reference would take too long: some
// queries and some keys in double. Legend: B micro-batch, T sequence, H heads of queries, G of keys
// and values, D head size.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/executor/kernels/attention_reference.h"

namespace zeroplan::kernel_test {

// Numbers from a short table: 79 million normal ones would take longer than the test.
inline Tensor FromTable(Rng& rng, int64_t n) {
  std::vector<double> table(8191);
  for (double& v : table) v = rng.Normal(1.0);
  Tensor t(Dtype::kBF16, n);
  for (int64_t i = 0; i < n; ++i) t.Set(i, table[static_cast<size_t>((i + i / 8191) % 8191)]);
  return t;
}

// A launch at a size that models train at, its results held against double for some queries and
// keys.
struct SampledAttention {
  AttentionShape s;
  Tensor out, lse, dqkv;
  Doubles qkv, dout;

  SampledAttention(const AttentionShape& shape, Rng& rng)
      : s(shape),
        out(Dtype::kBF16, s.out_size()),
        lse(Dtype::kF32, s.B * s.H * s.T),
        dqkv(Dtype::kBF16, s.qkv_size()) {
    Tensor input = FromTable(rng, s.qkv_size()), gradient = FromTable(rng, s.out_size());
    Bench bench;
    bench.Run(KernelId::kAttentionForward, s.dims(), {&input, &out, &lse});
    bench.Run(KernelId::kAttentionBackward, s.dims(), {&gradient, &input, &out, &lse, &dqkv});
    qkv = input.values();
    dout = gradient.values();
  }

  void CheckSamples(Rng& rng) const {
    CheckQuery(0, 0, 0);
    for (int i = 0; i < 60; ++i) CheckQuery(rng.Below(s.B), rng.Below(s.H), rng.Below(s.T));
    for (int i = 0; i < 6; ++i) {
      CheckKey(rng.Below(s.B), rng.Below(s.G), s.T - 1 - rng.Below(std::min<int64_t>(s.T, 60)));
    }
    CheckKey(rng.Below(s.B), rng.Below(s.G), std::max<int64_t>(0, s.T - 300));  // beyond any tile
  }

  // A query in double: the probability of each key, its gradient's part p (dp - delta), and how far
  // 16 bits may take that part: dS is rounded, and so is the saved out that delta = dout . out sums
  // up.
  struct Query {
    double lse = 0;
    Doubles p, dscore, slack, out, out_weight;
  };
  Query Reference(int64_t b, int64_t h, int64_t q) const {
    Query query;
    query.out.resize(static_cast<size_t>(s.D));
    query.out_weight = query.out;
    double sum = 0, delta = 0, delta_slack = 0;
    Doubles dp;
    for (int64_t k = 0; k <= q; ++k) {
      double score = 0, gradient = 0;
      for (int64_t d = 0; d < s.D; ++d) {
        score += At(qkv, s.Query(b, q, h) + d) * At(qkv, s.Key(b, k, h) + d);
        gradient += At(dout, s.Out(b, q, h) + d) * At(qkv, s.Value(b, k, h) + d);
      }
      sum += query.p.emplace_back(std::exp(score / std::sqrt(static_cast<double>(s.D))));
      dp.push_back(gradient);
    }
    query.lse = std::log(sum);
    for (size_t k = 0; k < dp.size(); ++k) {
      query.p[k] /= sum;
      delta += query.p[k] * dp[k];
      for (int64_t d = 0; d < s.D; ++d) {
        const double v = At(qkv, s.Value(b, static_cast<int64_t>(k), h) + d);
        query.out[static_cast<size_t>(d)] += query.p[k] * v;
        query.out_weight[static_cast<size_t>(d)] += query.p[k] * std::abs(v);
      }
    }
    for (int64_t d = 0; d < s.D; ++d) {
      const int64_t i = s.Out(b, q, h) + d;
      delta_slack += 2 * kRoundOff * std::abs(out[i] * At(dout, i));
    }
    for (size_t k = 0; k < dp.size(); ++k) {
      query.dscore.push_back(query.p[k] * (dp[k] - delta));
      query.slack.push_back(query.p[k] * (2 * kRoundOff * std::abs(dp[k] - delta) + delta_slack));
    }
    return query;
  }

  void CheckQuery(int64_t b, int64_t h, int64_t q) const {
    CAPTURE(b);
    CAPTURE(h);
    CAPTURE(q);
    const Query query = Reference(b, h, q);
    // Scores are sums of D terms near 1 in fp32, about |8| before the logarithm.
    CHECK(Close(lse[(b * s.H + h) * s.T + q], query.lse, Dtype::kF32, 1e-4));
    Gap out_gap{"out"}, dq_gap{"dq"};
    for (int64_t d = 0; d < s.D; ++d) {
      // Probabilities are rounded to bf16 before they weigh the values.
      const auto i = static_cast<size_t>(d);
      out_gap.Add(out[s.Out(b, q, h) + d], query.out[i], kRoundOff * query.out_weight[i]);
      double want = 0, slack = 0;
      for (size_t k = 0; k < query.p.size(); ++k) {
        const double key = Scaled(s.Key(b, static_cast<int64_t>(k), h) + d);
        want += query.dscore[k] * key;
        slack += query.slack[k] * std::abs(key);
      }
      dq_gap.Add(dqkv[s.Query(b, q, h) + d], want, slack);
    }
    out_gap.Check();
    dq_gap.Check();
  }

  // dk and dv of a key: of all queries behind it, in all heads that share it.
  void CheckKey(int64_t b, int64_t g, int64_t key) const {
    CAPTURE(b);
    CAPTURE(g);
    CAPTURE(key);
    const auto size = static_cast<size_t>(s.D);
    Doubles dk(size), dk_slack(size), dv(size), dv_slack(size);
    for (int64_t h = g * s.Sharing(); h < (g + 1) * s.Sharing(); ++h) {
      Doubles dk_head(size), dv_head(size);
      for (int64_t q = key; q < s.T; ++q) {
        const Query query = Reference(b, h, q);
        const auto k = static_cast<size_t>(key);
        for (size_t d = 0; d < size; ++d) {
          const double value = Scaled(s.Query(b, q, h) + static_cast<int64_t>(d));
          const double term = query.p[k] * At(dout, s.Out(b, q, h) + static_cast<int64_t>(d));
          dk_head[d] += query.dscore[k] * value;
          dk_slack[d] += query.slack[k] * std::abs(value);
          dv_head[d] += term;
          dv_slack[d] += kRoundOff * std::abs(term);
        }
      }
      for (size_t d = 0; d < size; ++d) {  // a head's own are rounded before they add up
        dk[d] += dk_head[d];
        dk_slack[d] += kRoundOff * std::abs(dk_head[d]);
        dv[d] += dv_head[d];
        dv_slack[d] += kRoundOff * std::abs(dv_head[d]);
      }
    }
    Gap dk_gap{"dk"}, dv_gap{"dv"};
    const int64_t head = g * s.Sharing();
    for (size_t d = 0; d < size; ++d) {
      const auto i = static_cast<int64_t>(d);
      dk_gap.Add(dqkv[s.Key(b, key, head) + i], dk[d], dk_slack[d]);
      dv_gap.Add(dqkv[s.Value(b, key, head) + i], dv[d], dv_slack[d]);
    }
    dk_gap.Check();
    dv_gap.Check();
  }

 private:
  static constexpr double kRoundOff = 0x1p-8;  // of bf16

  static double At(const Doubles& values, int64_t i) { return values[static_cast<size_t>(i)]; }

  // The worst element of what is checked: how far beyond its slack and its own rounding.
  struct Gap {
    const char* what;
    double worst = 0, got = 0, want = 0;

    void Add(double is, double should, double slack) {
      const double beyond = std::abs(is - should) - slack - kRoundOff * std::abs(should) - 1e-5;
      if (!(beyond <= worst)) {
        worst = beyond;
        got = is;
        want = should;
      }
    }
    void Check() const {
      CHECK_MESSAGE(worst <= 0, what << " is " << got << " for " << want << ", " << worst
                                     << " farther off than rounding goes");
    }
  };

  double Scaled(int64_t i) const { return At(qkv, i) / std::sqrt(static_cast<double>(s.D)); }
};

}  // namespace zeroplan::kernel_test
