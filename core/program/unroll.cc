#include "core/program/unroll.h"

#include <algorithm>

#include "core/program/step_order.h"

namespace zeroplan {
namespace {

void RunSection(const Program& program, Section section, uint8_t kind, UnrollVisitor& visitor) {
  int64_t index = 0;
  for (const Instruction& instruction : program.section(section)) {
    if (RunsIn(instruction, section, kind)) visitor.Run(instruction, {section, index});
    ++index;
  }
  visitor.EndSection(section, kind);
}

void RunStep(const Program& program, UnrollVisitor& visitor) {
  // Two middle micro-steps follow each other where there are as many.
  const int64_t micro_steps = std::min<int64_t>(program.setup.batch.grad_accum, 4);
  ForEachStepSection(micro_steps, [&](Section section, uint8_t kind, int64_t) {
    RunSection(program, section, kind, visitor);
  });
  visitor.EndStep();
}

}  // namespace

void Unroll(const Program& program, UnrollVisitor& visitor) {
  RunSection(program, Section::kInit, kEvery, visitor);
  visitor.Synchronize();
  RunStep(program, visitor);
  RunStep(program, visitor);
  bool resumed = false;
  for (const Section section : kSectionsBetweenSteps) {
    if (program.section(section).empty()) continue;
    RunSection(program, Section::kDrain, kEvery, visitor);
    visitor.Synchronize();
    RunSection(program, section, kEvery, visitor);
    visitor.Synchronize();
    RunStep(program, visitor);
    resumed = true;
  }
  if (!resumed) RunStep(program, visitor);
  RunSection(program, Section::kDrain, kEvery, visitor);
}

}  // namespace zeroplan
