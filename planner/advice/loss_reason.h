// Why one choice is slower than another, in words.
#pragma once

#include <string>

#include "planner/estimate/estimate.h"
#include "planner/search/search.h"

namespace zeroplan {

// "12 % slower: it waits for the disk (+9.1 % of a step)": the difference a token, and its largest
// one or two parts. "1 % faster, which is less than offload has to gain" if offload's margin
// (kOffloadMargin) is why it was not chosen; "1 % faster" if another objective was. REQUIRES: both
// have times and are of one model.
std::string LossReason(const ChoiceEstimate& other, const ChoiceEstimate& best,
                       const SearchInputs& inputs);

}  // namespace zeroplan
