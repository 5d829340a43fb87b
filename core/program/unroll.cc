#include "core/program/unroll.h"

#include <algorithm>

namespace zeroplan {
namespace {

void RunSection(const Program& program, Section section, uint8_t kind, UnrollVisitor& visitor) {
  int64_t index = 0;
  for (const Instruction& instruction : program.section(section)) {
    if ((instruction.when & kind) != 0) visitor.Run(instruction, {section, index});
    ++index;
  }
  visitor.EndSection(section);
}

void RunStep(const Program& program, UnrollVisitor& visitor) {
  // Two middle micro-steps follow each other where there are as many.
  const int64_t micro_steps = std::min<int64_t>(program.setup.batch.grad_accum, 4);
  for (int64_t m = 0; m < micro_steps; ++m) {
    RunSection(program, Section::kMicroStep, MicroStepKind(m, micro_steps), visitor);
  }
  RunSection(program, Section::kOptimizerStep, kEvery, visitor);
  visitor.EndStep();
}

}  // namespace

void Unroll(const Program& program, UnrollVisitor& visitor) {
  RunSection(program, Section::kInit, kEvery, visitor);
  visitor.Synchronize();
  RunStep(program, visitor);
  RunStep(program, visitor);
  bool resumed = false;
  for (const Section section :
       {Section::kEval, Section::kGenerate, Section::kSave, Section::kLoad}) {
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
