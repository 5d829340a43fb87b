// The predicted step as a trace, over the grid: lanes, arrows and memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/lowering/lower.h"
#include "core/program/chrome_trace.h"
#include "cost_models/memory_walk.h"
#include "cost_models/step_time.h"
#include "hwprofiles/loader.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {
namespace {

// Slices in order on each lane, arrows between lanes that point forward.
void CheckShape(const TraceProcess& process) {
  std::array<int64_t, kLanes> free_at{};
  for (const TraceSlice& slice : process.slices) {
    int64_t& lane = free_at[static_cast<size_t>(slice.lane)];
    CHECK(slice.begin_ns >= lane);
    CHECK(slice.end_ns >= slice.begin_ns);
    lane = slice.end_ns;
  }
  for (const TraceArrow& arrow : process.arrows) {
    const TraceSlice &from = process.slices[arrow.from], &to = process.slices[arrow.to];
    CHECK(from.lane != to.lane);
    CHECK(to.lane != kLayerLane);
    CHECK(from.end_ns > from.begin_ns);
    CHECK(to.end_ns > to.begin_ns);
    CHECK(from.begin_ns <= to.begin_ns);
  }
  for (size_t i = 1; i < process.memory.size(); ++i) {
    CHECK(process.memory[i - 1].ns < process.memory[i].ns);
  }
}

TEST_CASE(
    "the trace of any predicted step has whole lanes, arrows, and the memory that is planned") {
  const CostModel costs(LoadProfile("dgx-h100"), {2, 2});
  for (int stage = 0; stage <= 3; ++stage) {
    for (const testing::Offload offload : testing::OffloadsOf(stage)) {
      for (const int64_t grad_accum : {1, 3}) {
        CAPTURE(stage);
        CAPTURE(testing::OffloadLabel(offload));
        CAPTURE(grad_accum);
        TrainSetup setup = testing::BaseSetup(stage, 2, Dtype::kBF16, grad_accum, kNoRecompute);
        testing::SetOffload(setup, offload);
        LowerOptions options;
        options.backend = Backend::kCuda;
        const Program program = Lower(testing::TinyModel(), setup, options);
        const std::vector<TracedInstruction> issued = StepTimer(costs).Trace(program, 2);
        const TraceProcess process = BuildTraceProcess(program, issued);
        CheckShape(process);
        // What an update leaves to the next step was left by the one before, too.
        size_t timed = 0, untimed = 0;
        for (const TracedInstruction& item : issued) {
          const Instruction& instruction =
              program.section(item.section)[static_cast<size_t>(item.index)];
          if (TakesTime(instruction)) ++(item.timed ? timed : untimed);
        }
        const size_t on_lanes = static_cast<size_t>(
            std::count_if(process.slices.begin(), process.slices.end(),
                          [](const TraceSlice& slice) { return slice.lane != kLayerLane; }));
        CHECK(on_lanes == timed);
        CHECK(untimed < timed);
        if (stage > 0) CHECK(!process.arrows.empty());
        std::array<uint64_t, kSpaces> peak{};
        for (const TraceMemory& memory : process.memory) {
          uint64_t classes = 0;
          for (const uint64_t bytes : memory.device) classes += bytes;
          CHECK(classes == memory.arenas[0]);
          for (size_t s = 0; s < kSpaces; ++s) peak[s] = std::max(peak[s], memory.arenas[s]);
        }
        // A step's peak, of which checkpoints and validation are no part.
        for (size_t s = 0; s < kSpaces; ++s) CHECK(peak[s] <= program.live_peak_bytes[s]);
        const MemoryReport memory = WalkMemory(program);
        for (const Phase phase : {Phase::kBackward, Phase::kStep}) {
          CHECK(peak[0] >= memory.phases[static_cast<size_t>(phase)].bytes);
        }
        for (size_t s = 0; s < kSpaces; ++s) {
          CHECK(process.memory.back().arenas[s] == process.memory.front().arenas[s]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan
