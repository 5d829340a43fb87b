// An estimate as a page: what `estimate` prints, in pictures.
#pragma once

#include <string>
#include <vector>

#include "planner/estimate/estimate.h"
#include "planner/page/html.h"

namespace zeroplan {

// What a page says of how it was made.
struct PageOrigin {
  std::string command;                      // the command line, as a shell takes it
  std::vector<std::string> assumed, notes;  // as the text report has them
};

// `inputs` are those that `estimate` was made of; its cost model gives the memory over a step of
// the fastest choice that fits, or, where none does, of the one that takes least.
Page EstimatePage(const Estimate& estimate, const EstimateInputs& inputs, const PageOrigin& origin);

}  // namespace zeroplan
