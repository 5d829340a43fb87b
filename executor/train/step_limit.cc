#include "executor/train/step_limit.h"

#include <algorithm>

#include "core/base/timing.h"

namespace zeroplan {

void StepLimit::Note(double seconds) {
  if (last_.size() < kWindow) {
    last_.push_back(seconds);
  } else {
    last_[noted_ % kWindow] = seconds;
  }
  ++noted_;
}

double StepLimit::seconds() const {
  if (asked_) return *asked_;
  const double known = std::max(predicted_, Median(last_));
  return known > 0 ? std::max(kFloor, kFactor * known) : kFirst;
}

}  // namespace zeroplan
