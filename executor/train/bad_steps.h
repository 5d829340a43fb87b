// Steps that were skipped because something was wrong with them, and how many in a row are too
// many.
#pragma once

#include <cstdint>
#include <string>

#include "core/config/zero_config.h"
#include "core/program/step_state.h"

namespace zeroplan {

// "gradients that are not finite". Empty for kTaken.
std::string SkipReasonText(int32_t reason);

class BadSteps {
 public:
  // So many in a row are skipped; one more is too many.
  BadSteps(const PrecisionConfig& precision, int64_t limit)
      : precision_(precision), limit_(limit) {}

  // `state`: what the first step will be made with.
  void Start(const StepState& state) { scale_ = state.loss_scale; }
  // After each step. An overflow that a lower loss scale may cure is not bad: it is how a dynamic
  // scale is found.
  void Note(const StepState& state);

  int64_t in_a_row() const { return in_a_row_; }
  bool too_many() const { return in_a_row_ > limit_; }
  // Whether any step since Start changed the weights.
  bool any_taken() const { return any_taken_; }

 private:
  PrecisionConfig precision_;
  int64_t limit_;
  float scale_ = 1;  // of the coming step
  int64_t in_a_row_ = 0;
  bool any_taken_ = false;
};

}  // namespace zeroplan
