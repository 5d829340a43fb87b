#include "cost_models/walk_order.h"

namespace zeroplan {

std::vector<SectionRun> WalkOrder(const Program& program) {
  const int64_t grad_accum = program.setup.batch.grad_accum;
  std::vector<SectionRun> order = {{Section::kInit, kEvery, 0}};
  if (grad_accum == 1) {
    order.push_back({Section::kMicroStep, kOnly, 1});
  } else {
    order.push_back({Section::kMicroStep, kFirst, 1});
    if (grad_accum > 2) order.push_back({Section::kMicroStep, kMiddle, grad_accum - 2});
    order.push_back({Section::kMicroStep, kLast, 1});
  }
  order.push_back({Section::kOptimizerStep, kEvery, 1});
  for (Section section :
       {Section::kDrain, Section::kEval, Section::kGenerate, Section::kSave, Section::kLoad}) {
    order.push_back({section, kEvery, 0});
  }
  return order;
}

}  // namespace zeroplan
