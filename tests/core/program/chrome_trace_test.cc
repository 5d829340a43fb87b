// Lanes, memory and arrows of a trace, of programs and times made by hand.
#include "core/program/chrome_trace.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/core/program/program_builder.h"

namespace zeroplan {
namespace {

constexpr double kUs = 1e-6;

std::vector<TracedInstruction> Issued(const Program& program, Section section) {
  std::vector<TracedInstruction> issued;
  for (size_t i = 0; i < program.section(section).size(); ++i) {
    issued.push_back({section, static_cast<int32_t>(i)});
  }
  return issued;
}

// compute: alloc x, fill x, record | gather: wait, copy | compute: fill y, free x.
struct Handed {
  ProgramBuilder builder;
  BufferId y, x;

  Handed() {
    y = builder.Add("y", 64, true);
    x = builder.Add("x", 1024, false);
    builder.program.buffers[x].memory_class = MemoryClass::kActivations;
    const EventId event = builder.Event();
    builder.In(Section::kMicroStep).Make(x).Fill(x).Record(event);
    builder.On(Stream::kGather).Wait(event).Move(builder.All(x), builder.All(x));
    builder.On(Stream::kCompute).Fill(y).Drop(x);
  }
  const Program& program() const { return builder.program; }

  TraceProcess Build(double copy_begin_us, double fill_begin_us) const {
    std::vector<TracedInstruction> issued = Issued(program(), Section::kMicroStep);
    const auto span = [](int32_t index, double begin, double us) {
      return TraceSpan{Section::kMicroStep, index, begin * kUs, (begin + us) * kUs};
    };
    GiveTimes(program(), {span(5, fill_begin_us, 5), span(1, 1, 4), span(4, copy_begin_us, 3)},
              &issued);
    return BuildTraceProcess(program(), issued);
  }
};

TEST_CASE("a trace's process: slices, memory by class and arena, and who waited for whom") {
  const TraceProcess process = Handed().Build(6, 6);
  REQUIRE(process.slices.size() == 4);
  const TraceSlice &fill = process.slices[0], &copy = process.slices[1], &layer = process.slices[3];
  CHECK(fill.lane == static_cast<int>(Stream::kCompute));
  CHECK(fill.begin_ns == 1000);
  CHECK(fill.end_ns == 5000);
  CHECK(copy.lane == static_cast<int>(Stream::kGather));
  CHECK(copy.begin_ns == 6000);
  CHECK(layer.lane == kLayerLane);
  CHECK(layer.begin_ns == 1000);
  CHECK(layer.end_ns == 11000);
  REQUIRE(process.arrows.size() == 1);
  CHECK(process.arrows[0].from == 0);
  CHECK(process.arrows[0].to == 1);
  // y from the begin, x from its alloc to its free, which is after the second fill.
  REQUIRE(process.memory.size() == 2);
  CHECK(process.memory[0].ns == 0);
  CHECK(process.memory[0].device[static_cast<size_t>(MemoryClass::kActivations)] == 1024);
  CHECK(process.memory[0].arenas[0] == 1024 + 64);
  CHECK(process.memory[1].ns == 11000);
  CHECK(process.memory[1].device[static_cast<size_t>(MemoryClass::kActivations)] == 0);
  CHECK(process.memory[1].arenas[0] == 64);
}

TEST_CASE("a coarse clock makes no slices that overlap, and no arrow that points back") {
  // By the clock the second fill began before the first had ended, and the copy before it began.
  const TraceProcess process = Handed().Build(0.5, 3);
  CHECK(process.slices[2].begin_ns == 5000);
  CHECK(process.slices[2].end_ns == 8000);
  CHECK(process.arrows.empty());
}

TEST_CASE("the n-th run of an instruction has the n-th of its spans; without one no time") {
  const Handed handed;
  std::vector<TracedInstruction> issued = Issued(handed.program(), Section::kMicroStep);
  const std::vector<TracedInstruction> once = issued;
  issued.insert(issued.end(), once.begin(), once.end());
  const auto span = [](int32_t index, double begin) {
    return TraceSpan{Section::kMicroStep, index, begin, begin + 0.5};
  };
  GiveTimes(handed.program(), {span(1, 7), span(4, 3), span(1, 2)}, &issued);
  CHECK(issued[1].begin_seconds == 2);
  CHECK(issued[once.size() + 1].begin_seconds == 7);
  CHECK(issued[4].timed);
  CHECK_FALSE(issued[once.size() + 4].timed);
  CHECK_FALSE(issued[5].timed);
  // What is recorded after something that never ran in the trace is not what anything waited for.
  const TraceProcess process = BuildTraceProcess(handed.program(), issued);
  CHECK(process.arrows.size() == 1);
}

TEST_CASE("a predicted step lies beside the last whole step that was measured") {
  ProgramBuilder builder;
  const BufferId x = builder.Add("x", 64, true);
  builder.In(Section::kMicroStep).Fill(x).In(Section::kOptimizerStep).Fill(x);
  const Program& program = builder.program;
  const auto run = [](Section section, double begin) {
    return TracedInstruction{section, 0, true, begin, begin + 1};
  };
  const std::vector<TracedInstruction> measured = {
      run(Section::kMicroStep, 1), run(Section::kOptimizerStep, 3), run(Section::kMicroStep, 5),
      run(Section::kMicroStep, 7), run(Section::kOptimizerStep, 9), run(Section::kMicroStep, 11)};
  CHECK(LastStepBegin(program, measured) == 5);
  CHECK_FALSE(LastStepBegin(program, std::vector{measured[0]}).has_value());
  const std::vector<TracedInstruction> predicted = {run(Section::kMicroStep, 0.5),
                                                    run(Section::kOptimizerStep, 1.5)};
  ChromeTrace trace(program);
  trace.AddProcess("rank 0", measured);
  trace.AddBesideLastStep("predicted", predicted);
  const std::string text = trace.Finish();
  CHECK(text.find(R"("pid":2,"tid":201,"ts":5000000.000,"dur":1000000.000)") != std::string::npos);
  CHECK(text.find(R"("pid":2,"tid":201,"ts":6000000.000,"dur":1000000.000)") != std::string::npos);
}

}  // namespace
}  // namespace zeroplan
