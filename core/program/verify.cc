// Unrolls the program and checks it on the order that its events guarantee, whatever order a run
// takes.
#include "core/program/verify.h"

#include "core/base/error.h"
#include "core/program/static_check.h"
#include "core/program/step_order.h"
#include "core/program/unrolled_check.h"

namespace zeroplan {
namespace {

// One rank's pass over the unrolled program.
class RankCheck : public UnrollVisitor {
 public:
  RankCheck(const Program& program, int rank, Violations& violations)
      : order_(program.event_count),
        memory_(program, rank, order_, violations),
        gradients_(program, violations) {}

  void Run(const Instruction& instruction, Site site) override {
    const Moment moment = order_.Issue(instruction.stream);
    if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
      order_.Record(record->event, instruction.stream);
    } else if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
      order_.Wait(wait->event, instruction.stream);
    } else {
      memory_.Run(instruction, moment, site);
      gradients_.Run(instruction, site);
    }
  }
  void EndSection(Section section, uint8_t kind) override {
    memory_.EndSection(section == Section::kMicroStep && (kind & kLeavesToMicroStep) != 0);
    gradients_.EndSection(section);
  }
  void EndStep() override { gradients_.EndStep(); }
  void Synchronize() override { order_.Synchronize(); }

 private:
  HappensBefore order_;
  MemoryCheck memory_;
  GradientCheck gradients_;
};

}  // namespace

std::vector<Violation> Verify(const Program& program, int limit) {
  Violations violations(program, limit);
  if (!CheckWellFormed(program, violations)) return violations.Take();
  CheckLayout(program, violations);
  CheckBuffers(program, violations);
  CheckSaveCopies(program, violations);
  CheckInstructions(program, violations);
  CheckEvents(program, violations);
  // A rank touches its own arenas only, at places linear in its coordinates: if the first and the
  // last rank are within bounds, so are all.
  RankCheck first(program, 0, violations);
  Unroll(program, first);
  if (const int last = program.setup.batch.world_size - 1; last > 0) {
    RankCheck check(program, last, violations);
    Unroll(program, check);
  }
  return violations.Take();
}

void VerifyOrThrow(const Program& program) {
  const std::vector<Violation> found = Verify(program, 1);
  if (!found.empty()) throw CheckFailure(found.front().message);
}

}  // namespace zeroplan
