#include "executor/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <vector>

namespace zeroplan {

int32_t DrawToken(std::span<const float> logits, const SamplingOptions& sampling,
                  std::mt19937_64& random) {
  const auto at = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  const auto likelier = [&](int32_t a, int32_t b) {
    return at(a) != at(b) ? at(a) > at(b) : a < b;
  };
  if (sampling.temperature <= 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  size_t kept = sampling.top_k > 0 ? std::min(logits.size(), static_cast<size_t>(sampling.top_k))
                                   : logits.size();
  // A few of a large vocabulary are found without a list of all.
  const auto tokens = std::views::iota(0, static_cast<int32_t>(logits.size()));
  std::vector<int32_t> order(kept);
  std::partial_sort_copy(tokens.begin(), tokens.end(), order.begin(), order.end(), likelier);
  std::vector<double> weights(kept);
  for (size_t i = 0; i < kept; ++i) {
    weights[i] = std::exp(static_cast<double>(at(order[i]) - at(order[0])) / sampling.temperature);
  }
  if (sampling.top_p < 1) {
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    double before = weights[0];
    for (kept = 1; kept < weights.size() && before < sampling.top_p * all; ++kept) {
      before += weights[kept];
    }
    weights.resize(kept);
  }
  std::discrete_distribution<size_t> draw(weights.begin(), weights.end());
  return order[draw(random)];
}

}  // namespace zeroplan
