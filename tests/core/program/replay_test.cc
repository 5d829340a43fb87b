#include "core/program/replay.h"

#include <doctest/doctest.h>

#include <array>
#include <functional>

#include "core/lowering/lower.h"
#include "core/program/step_order.h"
#include "tests/core/lowering/matrix.h"
#include "tests/core/program/program_builder.h"

namespace zeroplan {
namespace {

using Obstacle = std::optional<ReplayObstacle>;

// What can be told from the setup alone.
bool OffloadsNothing(const TrainSetup& setup) {
  return setup.zero.offload_optimizer.device == OffloadDevice::kNone &&
         setup.zero.offload_param.device == OffloadDevice::kNone;
}

// Whether steps move anything between device and host but tokens and the step state.
bool StepsMoveMore(const Program& program) {
  for (const Section section : {Section::kMicroStep, Section::kOptimizerStep}) {
    for (const Instruction& instruction : program.section(section)) {
      const auto* copy = std::get_if<Copy>(&instruction.op);
      if (copy == nullptr) continue;
      const Buffer& from = program.buffers[copy->src.buffer];
      const Buffer& to = program.buffers[copy->dst.buffer];
      const Role host = from.space == Space::kDevice ? to.role : from.role;
      if (from.space != to.space && host != Role::kTokensHost && host != Role::kStateHost) {
        return true;
      }
    }
  }
  return false;
}

TEST_CASE("replay: one rank replays unless its steps move offloaded states; several never") {
  const ModelSpec model = testing::TinyModel();
  int replayed = 0, refused = 0;
  for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
    for (testing::Cell& cell : testing::AllCells({1, 2}, {Dtype::kBF16}, {1, 2, 4})) {
      for (const bool pinned : {true, false}) {
        CAPTURE(cell.name);
        CAPTURE(pinned);
        cell.setup.zero.offload_optimizer.pin_memory = pinned;
        cell.setup.zero.offload_param.pin_memory = pinned;
        LowerOptions options;
        options.backend = backend;
        options.logits_chunk_bytes = 400;
        const Program program = Lower(model, cell.setup, options);
        const bool replays = !FindReplayObstacle(program).has_value();
        ++(replays ? replayed : refused);
        if (cell.setup.batch.world_size == 1 && OffloadsNothing(cell.setup)) CHECK(replays);
        if (cell.setup.batch.world_size > 1) CHECK(!replays);
        if (StepsMoveMore(program)) CHECK(!replays);
      }
    }
  }
  CHECK(replayed > 0);
  CHECK(refused > 0);
}

// Buffers and events that every program below has; `steps` puts its instructions in.
struct Parts {
  BufferId device, pinned, pageable, file;
  EventId event;
};

Obstacle FoundIn(const std::function<void(ProgramBuilder&, const Parts&)>& steps,
                 int64_t grad_accum = 3) {
  ProgramBuilder b(1, grad_accum);
  const Parts parts{b.Add("x", 256, true), b.Add("x", 256, true, Space::kPinned),
                    b.Add("x", 256, true, Space::kPageable), b.Add("x", 4096, true, Space::kFile),
                    b.Event()};
  b.In(Section::kMicroStep).Fill(parts.device);
  b.In(Section::kOptimizerStep).Fill(parts.device);
  steps(b, parts);
  return FindReplayObstacle(b.program);
}

TEST_CASE("replay: kernels and copies within the device have no obstacle") {
  CHECK(FoundIn([](ProgramBuilder& b, const Parts& parts) {
          b.In(Section::kMicroStep).Move(b.All(parts.device), b.All(parts.device));
        }) == std::nullopt);
}

TEST_CASE("replay: threads of the host are no part of a graph") {
  for (const Stream stream : kHostStreams) {
    CHECK(OnHost(stream));
    CHECK(FoundIn([&](ProgramBuilder& b, const Parts& parts) {
            b.In(Section::kOptimizerStep).On(stream).File(true, b.All(parts.pinned), {});
          }) == ReplayObstacle::kHostStream);
  }
}

TEST_CASE("replay: collectives are refused, those of one rank too") {
  CHECK(FoundIn([](ProgramBuilder& b, const Parts& parts) {
          const Ref all = b.All(parts.device);
          b.In(Section::kOptimizerStep).Collect(CollectiveKind::kAllReduce, {all, all});
        }) == ReplayObstacle::kCollective);
}

TEST_CASE("replay: pageable memory at either end of a copy is refused") {
  for (const bool source : {true, false}) {
    CHECK(FoundIn([&](ProgramBuilder& b, const Parts& parts) {
            const Ref far = b.All(parts.pageable), near = b.All(parts.device);
            b.In(Section::kMicroStep).Move(source ? far : near, source ? near : far);
          }) == ReplayObstacle::kPageableCopy);
  }
}

TEST_CASE("replay: only events of one repetition of a section") {
  const auto with = [](Section recording, uint8_t recorded, Section waiting, uint8_t waited) {
    return FoundIn([&](ProgramBuilder& b, const Parts& parts) {
      b.In(recording).On(Stream::kHostToDevice).When(recorded).Record(parts.event);
      b.In(waiting).On(Stream::kDeviceToHost).When(waited).Wait(parts.event);
    });
  };
  CHECK(with(Section::kMicroStep, kEvery, Section::kMicroStep, kEvery) == std::nullopt);
  CHECK(with(Section::kMicroStep, kEvery, Section::kMicroStep, kLast) == std::nullopt);
  CHECK(with(Section::kOptimizerStep, kEvery, Section::kOptimizerStep, kEvery) == std::nullopt);
  // Sets count in micro_step alone.
  CHECK(with(Section::kOptimizerStep, kOnly, Section::kOptimizerStep, kEvery) == std::nullopt);
  // From one micro-step to the next.
  CHECK(with(Section::kMicroStep, kFirst, Section::kMicroStep, kEvery) ==
        ReplayObstacle::kCarriedEvent);
  CHECK(with(Section::kOptimizerStep, kEvery, Section::kMicroStep, kFirst) ==
        ReplayObstacle::kCarriedEvent);
  CHECK(with(Section::kOptimizerStep, kEvery, Section::kDrain, kEvery) ==
        ReplayObstacle::kCarriedEvent);
  // Other sections are no part of a step.
  CHECK(with(Section::kInit, kEvery, Section::kEval, kEvery) == std::nullopt);
  // The record comes after the wait: it is the next repetition's.
  CHECK(FoundIn([](ProgramBuilder& b, const Parts& parts) {
          b.In(Section::kMicroStep).On(Stream::kHostToDevice).Wait(parts.event);
          b.Record(parts.event);
        }) == ReplayObstacle::kCarriedEvent);
}

TEST_CASE("replay: waits for offloaded states are timed, those for tokens and step state are not") {
  for (const bool to_device : {true, false}) {
    const auto steps = [&](ProgramBuilder& b, const Parts& parts) {
      const Ref host = b.All(parts.pinned), device = b.All(parts.device);
      b.In(Section::kMicroStep).On(Stream::kHostToDevice);
      b.Move(to_device ? host : device, to_device ? device : host).Record(parts.event);
      b.On(Stream::kCompute).Wait(parts.event);
    };
    CHECK(FoundIn(steps) == ReplayObstacle::kTimedCopy);
    for (BufferId Program::*host : {&Program::tokens_host_buffer, &Program::state_host_buffer}) {
      CHECK(FoundIn([&](ProgramBuilder& b, const Parts& parts) {
              b.program.*host = parts.pinned;
              steps(b, parts);
            }) == std::nullopt);
    }
  }
}

TEST_CASE("replay: instructions of micro-steps that the accumulation does not have do not count") {
  const auto steps = [](ProgramBuilder& b, const Parts& parts) {
    b.In(Section::kMicroStep).On(Stream::kHost).When(kMiddle).Fill(parts.pinned);
  };
  CHECK(FoundIn(steps, 2) == std::nullopt);
  CHECK(FoundIn(steps, 3) == ReplayObstacle::kHostStream);
}

TEST_CASE("replay: a whole section is one graph for each kind of micro-step") {
  // Fill, and two copies that the middle micro-steps have alone.
  ProgramBuilder b(1, 3);
  const BufferId x = b.Add("x", 256, true), y = b.Add("y", 256, true);
  b.In(Section::kMicroStep).Fill(x).When(kMiddle).Move(b.All(x), b.All(y)).Move(b.All(y), b.All(x));
  b.When(kEvery).In(Section::kOptimizerStep).Fill(y);
  const ReplayCount three = CountReplayed(b.program);
  CHECK(three.graphs == 4);  // first, middle, last, update
  CHECK(three.nodes == 1 + 3 + 1 + 1);
  b.program.setup.batch.grad_accum = 1;
  const ReplayCount one = CountReplayed(b.program);
  CHECK(one.graphs == 2);
  CHECK(one.nodes == 2);
}

TEST_CASE("replay: what cannot be one graph is a graph for each run of launches") {
  ProgramBuilder b(1, 1);
  const BufferId x = b.Add("x", 256, true), host = b.Add("h", 256, true, Space::kPinned);
  b.In(Section::kMicroStep).Fill(x).Fill(x).Fill(x).Move(b.All(x), b.All(host)).Fill(x);
  b.In(Section::kOptimizerStep).Fill(x).Fill(x);
  REQUIRE(FindReplayObstacle(b.program) == ReplayObstacle::kTimedCopy);
  const ReplayCount count = CountReplayed(b.program);
  CHECK(count.graphs == 2);  // the launch after the copy is alone
  CHECK(count.nodes == 5);
}

// Streams, copies, collectives and events only see the order on their own stream: every launch in a
// run must follow the one before it there, and no run may be left unfound.
TEST_CASE("replay: runs of launches are all that follow one another on a stream") {
  const ModelSpec model = testing::TinyModel();
  size_t launches = 0, in_runs = 0;
  for (testing::Cell& cell : testing::AllCells({1, 2}, {Dtype::kBF16}, {1, 3})) {
    CAPTURE(cell.name);
    LowerOptions options;
    options.backend = Backend::kCuda;
    const Program program = Lower(model, cell.setup, options);
    for (const Section section : {Section::kMicroStep, Section::kOptimizerStep}) {
      for (const uint8_t kind : {kFirst, kMiddle, kLast, kOnly}) {
        const std::vector<Instruction>& list = program.section(section);
        const LaunchRuns found = FindLaunchRuns(program, section, kind);
        REQUIRE(found.run_of.size() == list.size());
        // What each stream issued last: a run's number, kNone for a launch alone, kOther else.
        constexpr int32_t kOther = -2;
        std::array<int32_t, kStreams> last;
        last.fill(kOther);
        std::vector<size_t> seen(found.runs.size());
        for (size_t i = 0; i < list.size(); ++i) {
          const bool runs = !OnHost(list[i].stream) && RunsIn(list[i], section, kind);
          const int32_t run = found.run_of[i];
          if (!runs) {
            CHECK(run == LaunchRuns::kNone);
            continue;
          }
          if (std::holds_alternative<Alloc>(list[i].op) ||
              std::holds_alternative<Free>(list[i].op)) {
            continue;
          }
          int32_t& before = last[static_cast<size_t>(list[i].stream)];
          if (!std::holds_alternative<LaunchKernel>(list[i].op)) {
            CHECK(run == LaunchRuns::kNone);
            before = kOther;
            continue;
          }
          ++launches;
          if (before != kOther) {  // after a launch: of the same run
            CHECK(run != LaunchRuns::kNone);
            CHECK(run == before);
          }
          if (run != LaunchRuns::kNone) {
            ++in_runs;
            const auto r = static_cast<size_t>(run);
            if (before == kOther) CHECK(seen[r] == 0);
            REQUIRE(seen[r] < found.runs[r].size());
            CHECK(found.runs[r][seen[r]++] == i);
          }
          before = run;
        }
        for (size_t r = 0; r < seen.size(); ++r) {
          CHECK(seen[r] == found.runs[r].size());
          CHECK(seen[r] > 1);
        }
      }
    }
  }
  CHECK(in_runs > launches / 2);
}

}  // namespace
}  // namespace zeroplan
