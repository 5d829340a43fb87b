// The time of a step among others: what an update leaves, the next forward pass has beside it.
#include "cost_models/step_time.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "tests/core/lowering/matrix.h"
#include "tests/cost_models/plain_profile.h"

namespace zeroplan {
namespace {

Program LowerMedium(int stage, int64_t grad_accum, int ranks = 8,
                    OffloadDevice optimizer = OffloadDevice::kNone) {
  TrainSetup setup = testing::BaseSetup(stage, ranks, Dtype::kBF16, grad_accum, kNoRecompute);
  setup.zero.offload_optimizer.device = optimizer;
  setup.zero.reduce_bucket_elements = kAuto;
  setup.zero.allgather_bucket_elements = 500'000'000;
  setup.batch.micro_batch = 4;
  setup.batch.seq_len = 1024;
  LowerOptions options;
  options.backend = Backend::kCuda;
  return Lower(LoadModel("gpt2-medium"), setup, options);
}

// The same program, but that the update ends when what it has on `stream` has.
Program Join(Program program, Stream stream) {
  auto& list = program.section(Section::kOptimizerStep);
  for (const auto& [op, on] : {std::pair<Op, Stream>{RecordEvent{program.event_count}, stream},
                               {WaitEvent{program.event_count}, Stream::kCompute}}) {
    Instruction instruction{op};
    instruction.stream = on;
    instruction.phase = Phase::kStep;
    list.push_back(instruction);
  }
  ++program.event_count;
  return program;
}

TEST_CASE("gathers that run on into the next step expose less at stages 1 and 2") {
  const CostModel costs(PlainProfile(), {8, 8});
  for (const int stage : {1, 2}) {
    for (const int64_t grad_accum : {1, 4}) {
      CAPTURE(stage);
      CAPTURE(grad_accum);
      const Program program = LowerMedium(stage, grad_accum);
      const StepTime carried = StepTimer(costs).Time(program);
      const StepTime joined = StepTimer(costs).Time(Join(program, Stream::kGather));
      CHECK(carried.exposed_comm_seconds < joined.exposed_comm_seconds);
      CHECK(carried.total_seconds < joined.total_seconds);
      // The same work is done.
      CHECK(carried.compute_seconds == doctest::Approx(joined.compute_seconds));
      CHECK(carried.optimizer_seconds == doctest::Approx(joined.optimizer_seconds));
    }
  }
}

TEST_CASE("an update on the host hides under the next forward pass, all but what is longer") {
  const CostModel costs(PlainProfile(), {1, 8});
  for (const int64_t grad_accum : {1, 4}) {
    CAPTURE(grad_accum);
    const Program program = LowerMedium(2, grad_accum, 1, OffloadDevice::kCpu);
    const StepTime carried = StepTimer(costs).Time(program);
    const StepTime joined = StepTimer(costs).Time(Join(program, Stream::kHostToDevice));
    double forward = 0;
    for (const Instruction& instruction : program.section(Section::kMicroStep)) {
      if (instruction.stream != Stream::kCompute || instruction.phase != Phase::kForward) continue;
      forward += costs.Seconds(program, instruction);
    }
    const double host = joined.exposed_offload_seconds;
    CHECK(joined.total_seconds - carried.total_seconds > 0.8 * std::min(forward, host));
    CHECK(joined.total_seconds - carried.total_seconds < 1.2 * forward);
    CHECK(carried.compute_seconds == doctest::Approx(joined.compute_seconds));
  }
}

TEST_CASE("the trace of a step has each instruction once, what the last one left included") {
  const CostModel costs(PlainProfile(), {8, 8});
  const Program program = LowerMedium(1, 1);
  StepTimer timer(costs);
  const std::vector<TraceSpan> trace = timer.Trace(program, 1);
  const double total = timer.Time(program).total_seconds;
  size_t gathers = 0, expected = 0;
  for (const TraceSpan& span : trace) {
    CHECK(span.begin_seconds >= 0);
    CHECK(span.end_seconds <= total * (1 + 1e-9));
    const auto& list = program.section(span.section);
    gathers += list[static_cast<size_t>(span.index)].stream == Stream::kGather;
  }
  for (const Instruction& instruction : program.section(Section::kOptimizerStep)) {
    expected +=
        instruction.stream == Stream::kGather && std::holds_alternative<Collective>(instruction.op);
  }
  CHECK(expected > 10);
  CHECK(gathers == expected);
}

}  // namespace
}  // namespace zeroplan
