// What may run side by side: the order that a program's events guarantee, and no more.
#include <doctest/doctest.h>

#include <optional>

#include "core/lowering/lower.h"
#include "core/program/happens_before.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

// Whether the instruction reduces gradients of the unit.
bool Reduces(const Program& program, const Instruction& instruction, int unit) {
  const auto* collective = std::get_if<Collective>(&instruction.op);
  if (collective == nullptr) return false;
  for (const Segment& segment : program.segs(*collective)) {
    const Buffer& source = program.buffers[segment.src.buffer];
    if (source.role == Role::kGradFull && source.unit == unit) return true;
  }
  return false;
}

bool WritesGradient(const Program& program, const Instruction& instruction, int unit) {
  const auto* launch = std::get_if<LaunchKernel>(&instruction.op);
  if (launch == nullptr) return false;
  for (int i = 0; i < launch->arg_count; ++i) {
    const Ref& ref = program.refs[launch->first_arg + static_cast<uint32_t>(i)];
    if (ref.null() || !Writes(AccessMode(launch->kernel, i, launch->flags))) continue;
    const Buffer& buffer = program.buffers[ref.buffer];
    if (buffer.role == Role::kGradFull && buffer.unit == unit) return true;
  }
  return false;
}

// Of the reductions of `unit` in the micro-step that reduces: how many come before its last
// gradient kernel in the list, and how many of them that kernel has to wait for.
struct Beside {
  int reductions = 0, waited_for = 0;
};

Beside CountBeside(const Program& program, int unit, uint8_t kind) {
  HappensBefore order(program.event_count);
  std::vector<Moment> reductions;
  Beside last;
  for (const Instruction& instruction : program.section(Section::kMicroStep)) {
    if ((instruction.when & kind) == 0) continue;
    const Moment moment = order.Issue(instruction.stream);
    if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
      order.Record(record->event, instruction.stream);
    } else if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
      order.Wait(wait->event, instruction.stream);
    }
    if (Reduces(program, instruction, unit)) reductions.push_back(moment);
    if (!WritesGradient(program, instruction, unit)) continue;
    last = {static_cast<int>(reductions.size()), 0};
    for (const Moment& reduction : reductions) {
      last.waited_for += order.Ordered(reduction, instruction.stream);
    }
  }
  return last;
}

TEST_CASE("a part of a unit is reduced beside the kernels that make the other parts") {
  for (const int stage : {0, 1}) {
    for (const int64_t grad_accum : {1, 3}) {
      CAPTURE(stage);
      CAPTURE(grad_accum);
      // Buckets of 900 elements: a layer's 4352 make several.
      const TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, grad_accum, 0);
      const Program program = Lower(testing::TinyModel(2), setup);
      const int unit = 2;
      REQUIRE(program.layout.units[unit].layer == 1);
      const Beside beside = CountBeside(program, unit, grad_accum == 1 ? kOnly : kLast);
      CHECK(beside.reductions >= 3);
      CHECK(beside.waited_for == 0);
    }
  }
}

TEST_CASE("without overlap_comm the kernels wait for every reduction") {
  TrainSetup setup = testing::BaseSetup(1, 2, Dtype::kBF16, 1, 0);
  setup.zero.overlap_comm = false;
  const Beside beside = CountBeside(Lower(testing::TinyModel(2), setup), 2, kOnly);
  CHECK(beside.reductions >= 3);
  CHECK(beside.waited_for == beside.reductions);
}

}  // namespace
}  // namespace zeroplan
