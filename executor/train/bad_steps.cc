#include "executor/train/bad_steps.h"

#include <utility>

namespace zeroplan {

std::string SkipReasonText(int32_t reason) {
  switch (static_cast<SkipReason>(reason)) {
    case kTaken:
      return "";
    case kGradientsNotFinite:
      return "gradients that are not finite";
    case kLossNotFinite:
      return "a loss that is not finite";
    case kLossSpike:
      return "a loss above --skip-loss-spike times its running median";
    case kGradientSpike:
      return "a gradient norm above --skip-loss-spike times its running median";
    case kAbandoned:
      return "data that a rank could not read";
    case kNothingCounts:
      return "no token that counts in the loss";
  }
  return "an unknown reason";
}

void BadSteps::Note(const StepState& state) {
  const float scale = std::exchange(scale_, state.loss_scale);
  if (state.skip == kTaken) {
    in_a_row_ = 0;
    any_taken_ = true;
    return;
  }
  if (state.skip == kNothingCounts) return;  // which says nothing of the training
  const bool dynamic = precision_.dtype == Dtype::kF16 && precision_.loss_scale <= 0;
  const bool curable = dynamic && state.skip == kGradientsNotFinite &&
                       static_cast<double>(scale) > precision_.min_loss_scale;
  if (!curable) ++in_a_row_;
}

}  // namespace zeroplan
