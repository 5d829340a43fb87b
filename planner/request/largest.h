// How large a model, a sequence or a micro-batch fits.
#pragma once

#include <functional>
#include <string>

#include "planner/request/resolved.h"

namespace zeroplan {

// Finds what `request.largest` asks for, by searches that ask whether anything fits, and sets it in
// `request`: `params` (steps of three digits, so 1 % and less), `seq_len` (steps of 128 tokens) or
// `micro_batch`. `progress` is told each step that is looked at, as "@@params 1.00B". Returns a
// paragraph that names the answer and says why the next larger ones do not fit. All of them were
// searched. Memory hardly ever falls as one of these grows, but it may; so some steps beyond the
// first that does not fit are searched too.
//
// Throws Error(kUsage) where other fields leave nothing to find, Error(kNothingFits) where not
// even the smallest fits.
std::string FindLargest(PlanRequest& request,
                        const std::function<void(const std::string&)>& progress = {});

}  // namespace zeroplan
