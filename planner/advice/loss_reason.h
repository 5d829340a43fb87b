// Why one choice is slower than another, in words.
#pragma once

#include <string>

#include "planner/estimate/estimate.h"
#include "planner/search/search.h"

namespace zeroplan {

// "12 % slower: it waits for the disk (+9.1 % of a step)": the difference a token, and its largest
// one or two parts. "0.2 % faster: a tie, and the simpler choice is preferred"; "1 % faster" if
// another objective is why it was not chosen. REQUIRES: both have times and are of one model.
std::string LossReason(const ChoiceEstimate& other, const ChoiceEstimate& best,
                       const SearchInputs& inputs);

}  // namespace zeroplan
