#include "core/program/step_order.h"

#include <doctest/doctest.h>

#include <tuple>

namespace zeroplan {
namespace {

TEST_CASE("step order: every micro-step, then the update") {
  using Run = std::tuple<Section, uint8_t, int64_t>;
  std::vector<Run> runs;
  const auto note = [&](Section section, uint8_t kind, int64_t m) {
    runs.emplace_back(section, kind, m);
  };
  ForEachStepSection(1, note);
  CHECK(runs ==
        std::vector<Run>{{Section::kMicroStep, kOnly, 0}, {Section::kOptimizerStep, kEvery, 1}});
  runs.clear();
  ForEachStepSection(4, note);
  CHECK(runs == std::vector<Run>{{Section::kMicroStep, kFirst, 0},
                                 {Section::kMicroStep, kMiddle, 1},
                                 {Section::kMicroStep, kMiddle, 2},
                                 {Section::kMicroStep, kLast, 3},
                                 {Section::kOptimizerStep, kEvery, 4}});
}

TEST_CASE("step order: walking each kind as often as it occurs is the step") {
  for (const int64_t grad_accum : {1, 2, 3, 7}) {
    Program program;
    program.setup.batch.grad_accum = grad_accum;
    int64_t runs = 0;
    uint8_t kinds = 0;
    for (const SectionRun& run : WalkOrder(program)) {
      if (run.section != Section::kMicroStep) continue;
      CHECK(run.times > 0);
      runs += run.times;
      kinds |= run.kinds;
    }
    CHECK(runs == grad_accum);
    CHECK(kinds == MicroStepKinds(grad_accum));
    uint8_t spelled_out = 0;
    ForEachStepSection(grad_accum, [&](Section section, uint8_t kind, int64_t) {
      if (section == Section::kMicroStep) spelled_out |= kind;
    });
    CHECK(kinds == spelled_out);
  }
}

TEST_CASE("step order: outside of micro_step every instruction runs") {
  Instruction instruction{Alloc{0}};
  instruction.when = kFirst;
  CHECK(RunsIn(instruction, Section::kMicroStep, kFirst));
  CHECK_FALSE(RunsIn(instruction, Section::kMicroStep, kLast));
  CHECK(RunsIn(instruction, Section::kOptimizerStep, kLast));
}

}  // namespace
}  // namespace zeroplan
