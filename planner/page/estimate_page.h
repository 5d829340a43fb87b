// An estimate as a page: what `estimate` prints, in pictures.
#pragma once

#include <string>
#include <vector>

#include "planner/estimate/estimate.h"
#include "planner/page/html.h"

namespace zeroplan {

// `inputs` are those that `estimate` was made of; its cost model gives the memory over a step of
// the fastest choice that fits, or, where none does, of the one that takes least.
Page EstimatePage(const Estimate& estimate, const EstimateInputs& inputs, const PageOrigin& origin);

}  // namespace zeroplan
