#include "core/program/step_order.h"

namespace zeroplan {

std::vector<SectionRun> WalkOrder(const Program& program) {
  const int64_t grad_accum = program.setup.batch.grad_accum;
  std::vector<SectionRun> order = {{Section::kInit, kEvery, 0}};
  for (const When kind : {kOnly, kFirst, kMiddle, kLast}) {
    if ((MicroStepKinds(grad_accum) & kind) == 0) continue;
    order.push_back({Section::kMicroStep, kind, kind == kMiddle ? grad_accum - 2 : 1});
  }
  order.push_back({Section::kOptimizerStep, kEvery, 1});
  order.push_back({Section::kDrain, kEvery, 0});
  for (const Section section : kSectionsBetweenSteps) order.push_back({section, kEvery, 0});
  return order;
}

}  // namespace zeroplan
