// What tests of engines compare would show a gradient that is lost: each instruction that makes,
// adds or reduces gradients is left out in turn.
#include <doctest/doctest.h>

#include "core/program/step_order.h"
#include "tests/executor/engine/small_training.h"

namespace zeroplan {
namespace {

using namespace small_training;

bool HoldsGradients(Role role) {
  return role == Role::kGradFull || role == Role::kGradShard || role == Role::kGradHost;
}

// Fills, which clear padding, and micro-steps that the run does not have left out.
bool WritesGradients(const Program& program, const Instruction& instruction) {
  const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
  const bool moves = std::holds_alternative<Collective>(instruction.op) ||
                     std::holds_alternative<Copy>(instruction.op);
  if (!moves && (launch == nullptr || launch->kernel == KernelId::kFill)) return false;
  if ((instruction.when & MicroStepKinds(program.setup.batch.grad_accum)) == 0) return false;
  bool writes = false;
  ForEachAccess(program, instruction, [&](const Ref& ref, ArgMode mode) {
    writes |= Writes(mode) && HoldsGradients(program.buffers[ref.buffer].role);
  });
  return writes;
}

// Of a run that adds up gradients over micro-steps and ranks, without instruction `i`.
Outcome TrainWithout(Program program, size_t i) {
  auto& list = program.section(Section::kMicroStep);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
  return Train(program);
}

TEST_CASE("a lost gradient stands out from rounding, whichever instruction loses it") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      CAPTURE(DtypeName(dtype));
      CAPTURE(stage);
      const auto setup_of = [&](int of_stage, int world_size) {
        TrainSetup setup = Setup(of_stage, world_size, 4 / world_size);
        setup.precision.dtype = setup.precision.grad_accum_dtype = dtype;
        return setup;
      };
      const Program program = Lower(SmallModel(), setup_of(stage, 2));
      const Outcome whole = Train(program);
      const Outcome alone = Train(setup_of(0, 1));
      CHECK(testing::FarthestTensor(whole.moments, alone.moments) < MomentTolerance(dtype));
      const std::vector<Instruction>& list = program.section(Section::kMicroStep);
      int lost = 0;
      for (size_t i = 0; i < list.size(); ++i) {
        if (!WritesGradients(program, list[i])) continue;
        INFO("without ", FormatInstruction(program, list[i]));
        const Outcome without = TrainWithout(program, i);
        CHECK(testing::FarthestTensor(without.moments, alone.moments) > 2 * MomentTolerance(dtype));
        ++lost;
      }
      CHECK(lost > 20);
    }
  }
}

}  // namespace
}  // namespace zeroplan
