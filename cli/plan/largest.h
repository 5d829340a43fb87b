// zeroplan plan --largest: how large a model, a sequence or a micro-batch fits.
#pragma once

#include <string>

#include "cli/plan/plan_request.h"

namespace zeroplan {

// Finds what `options.largest` asks for, by searches that ask whether anything fits, and sets it in
// `options`: --params (steps of three digits, so 1 % and less), --seq-len (steps of 128 tokens) or
// --micro-batch. Returns a paragraph that says what was found and why the next steps do not fit:
// each was searched, as was what is found. Memory hardly ever falls as one of these grows, but it
// may; so some steps beyond the first that does not fit are searched too.
//
// Throws Error(kUsage) where other options leave nothing to find, Error(kNothingFits) where not
// even the smallest fits.
std::string FindLargest(PlanOptions& options);

}  // namespace zeroplan
