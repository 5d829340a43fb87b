// The choice of the next token from the scores of all.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace zeroplan {

struct SamplingOptions {
  double temperature = 0.8;  // 0: always the likeliest token
  int top_k = 40;            // only this many of the likeliest; 0: all
  // Of those the likeliest whose probabilities together reach this much, as in nucleus sampling
  // (Holtzman et al. 2020): those before the last one are less. 1: all.
  double top_p = 1;
  uint64_t seed = 1;
};

// `logits`: of each token, finite. Of equal ones the first is the likelier. REQUIRES: not empty.
int32_t DrawToken(std::span<const float> logits, const SamplingOptions& sampling,
                  std::mt19937_64& random);

}  // namespace zeroplan
