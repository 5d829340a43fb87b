#include "executor/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace zeroplan {
namespace {

// How many of a vocabulary are sorted first where the nucleus may be of any size: most are smaller.
constexpr size_t kFirstSorted = 1024;

// Logits that are looked at together: whether one is above what was found is asked of all at once.
constexpr size_t kBlock = 1024;

// The likeliest `count`, likeliest first; of equals the first.
std::vector<int32_t> Likeliest(std::span<const float> logits, size_t count) {
  const auto at = [&](int32_t token) { return logits[static_cast<size_t>(token)]; };
  const auto likelier = [&](int32_t a, int32_t b) {
    return at(a) != at(b) ? at(a) > at(b) : a < b;
  };
  count = std::min(count, logits.size());
  std::vector<int32_t> found;  // a heap, the unlikeliest in front
  found.reserve(count);
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const auto block = logits.subspan(begin, std::min(kBlock, logits.size() - begin));
    if (found.size() == count) {
      const float least = at(found.front());
      if (std::count_if(block.begin(), block.end(), [=](float x) { return x > least; }) == 0) {
        continue;
      }
    }
    for (size_t i = 0; i < block.size(); ++i) {
      if (found.size() == count) {
        if (!(block[i] > at(found.front()))) continue;
        std::pop_heap(found.begin(), found.end(), likelier);
        found.pop_back();
      }
      found.push_back(static_cast<int32_t>(begin + i));
      std::push_heap(found.begin(), found.end(), likelier);
    }
  }
  std::sort_heap(found.begin(), found.end(), likelier);
  return found;
}

// Leaves the fewest of the first weights that come to `mass`; false if all of them do not.
bool CutNucleus(std::vector<double>& weights, double mass) {
  double before = weights[0];
  size_t kept = 1;
  for (; kept < weights.size() && before < mass; ++kept) before += weights[kept];
  weights.resize(kept);
  return before >= mass;
}

}  // namespace

int32_t DrawToken(std::span<const float> logits, const SamplingOptions& sampling,
                  std::mt19937_64& random) {
  if (sampling.temperature <= 0) return Likeliest(logits, 1).front();
  std::vector<int32_t> order;
  std::vector<double> weights;
  // Takes `tokens`, whose weights are those beside the likeliest of all; returns their sum.
  const auto weigh = [&](std::vector<int32_t> tokens, int32_t likeliest) {
    order = std::move(tokens);
    weights.resize(order.size());
    std::transform(order.begin(), order.end(), weights.begin(), [&](int32_t token) {
      const float below =
          logits[static_cast<size_t>(token)] - logits[static_cast<size_t>(likeliest)];
      return std::exp(static_cast<double>(below) / sampling.temperature);
    });
    return std::accumulate(weights.begin(), weights.end(), 0.0);
  };
  const auto top_k = static_cast<size_t>(std::max(sampling.top_k, 0));
  if (top_k > 0 && top_k < logits.size()) {
    std::vector<int32_t> tokens = Likeliest(logits, top_k);
    const int32_t likeliest = tokens.front();
    const double all = weigh(std::move(tokens), likeliest);
    if (sampling.top_p < 1) CutNucleus(weights, sampling.top_p * all);
  } else {
    std::vector<int32_t> tokens(logits.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    const int32_t likeliest = Likeliest(logits, 1).front();
    const double all = weigh(std::move(tokens), likeliest);
    for (size_t count = kFirstSorted; sampling.top_p < 1; count *= 8) {
      weigh(Likeliest(logits, count), likeliest);
      if (CutNucleus(weights, sampling.top_p * all) || count >= logits.size()) break;
    }
  }
  std::discrete_distribution<size_t> draw(weights.begin(), weights.end());
  return order[draw(random)];
}

}  // namespace zeroplan
