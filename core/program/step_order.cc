#include "core/program/step_order.h"

namespace zeroplan {

std::vector<bool> LeftToMicroStep(const Program& program) {
  std::vector<bool> left(program.buffers.size(), false), allocated(program.buffers.size(), false);
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if (const auto* alloc = std::get_if<Alloc>(&instruction.op)) {
      allocated[alloc->buffer] = true;
    } else if (const auto* free = std::get_if<Free>(&instruction.op)) {
      if (!allocated[free->buffer]) left[free->buffer] = true;
    }
  }
  return left;
}

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
