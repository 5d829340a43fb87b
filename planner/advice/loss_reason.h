// Why one choice is slower than another, in words.
#pragma once

#include <string>

#include "planner/estimate/estimate.h"
#include "planner/search/search.h"

namespace zeroplan {

// "12 % slower: it waits for the disk (+9.1 % of a step)": by how much, per token, and what the
// largest one or two differences are made of. "1 % faster, which is less than offload has to gain"
// where that is why it was not chosen (kOffloadMargin), "1 % faster" where another objective was.
// Both have times and are of one model.
std::string LossReason(const ChoiceEstimate& other, const ChoiceEstimate& best,
                       const SearchInputs& inputs);

}  // namespace zeroplan
