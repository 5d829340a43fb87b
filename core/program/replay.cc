#include "core/program/replay.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/program/step_order.h"

namespace zeroplan {
namespace {

using Obstacle = std::optional<ReplayObstacle>;

class ObstacleFinder {
 public:
  explicit ObstacleFinder(const Program& program)
      : program_(program),
        kinds_(MicroStepKinds(program.setup.batch.grad_accum)),
        sections_(program.event_count),
        recorded_(program.event_count) {
    for (int s = 0; s < kSections; ++s) {
      for (const Instruction& instruction : program.sections[static_cast<size_t>(s)]) {
        const auto bit = static_cast<uint16_t>(1u << s);
        if (const auto* record = std::get_if<RecordEvent>(&instruction.op)) {
          sections_[record->event] |= bit;
        } else if (const auto* wait = std::get_if<WaitEvent>(&instruction.op)) {
          sections_[wait->event] |= bit;
        }
      }
    }
  }

  Obstacle In(Section section) {
    recorded_.assign(recorded_.size(), 0);
    for (const Instruction& instruction : program_.section(section)) {
      if (!RunsIn(instruction, section, kinds_)) continue;
      // Outside of micro_step the set means nothing.
      const uint8_t kinds =
          section == Section::kMicroStep ? instruction.when & kinds_ : uint8_t{kEvery};
      if (const Obstacle found = Of(instruction, kinds)) return found;
    }
    return std::nullopt;
  }

 private:
  Obstacle Of(const Instruction& instruction, uint8_t kinds) {
    if (OnHost(instruction.stream)) return ReplayObstacle::kHostStream;
    return std::visit(
        Overload{
            [](const LaunchKernel&) -> Obstacle { return std::nullopt; },
            [](const Collective&) -> Obstacle { return ReplayObstacle::kCollective; },
            [&](const Copy& copy) -> Obstacle {
              if (SpaceOf(copy.src) == Space::kPageable || SpaceOf(copy.dst) == Space::kPageable) {
                return ReplayObstacle::kPageableCopy;
              }
              if (Offloads(copy)) return ReplayObstacle::kTimedCopy;
              return std::nullopt;
            },
            [](const FileIo&) -> Obstacle { return ReplayObstacle::kHostStream; },
            [](const Alloc&) -> Obstacle { return std::nullopt; },
            [](const Free&) -> Obstacle { return std::nullopt; },
            [&](const RecordEvent& record) -> Obstacle {
              recorded_[record.event] |= kinds;
              if (!InOneSection(record.event)) return ReplayObstacle::kCarriedEvent;
              return std::nullopt;
            },
            [&](const WaitEvent& wait) -> Obstacle {
              if (!InOneSection(wait.event) || (kinds & ~recorded_[wait.event]) != 0) {
                return ReplayObstacle::kCarriedEvent;
              }
              return std::nullopt;
            },
        },
        instruction.op);
  }

  Space SpaceOf(const Ref& ref) const { return program_.buffers[ref.buffer].space; }
  bool Offloads(const Copy& copy) const {
    const bool crosses =
        (SpaceOf(copy.src) == Space::kDevice) != (SpaceOf(copy.dst) == Space::kDevice);
    const auto every_step = [&](BufferId host) {
      return host == program_.tokens_host_buffer || host == program_.state_host_buffer ||
             host == program_.logits_host_buffer;
    };
    return crosses && !every_step(copy.src.buffer) && !every_step(copy.dst.buffer);
  }
  bool InOneSection(EventId event) const {
    return (sections_[event] & (sections_[event] - 1)) == 0;
  }

  const Program& program_;
  const uint8_t kinds_;
  std::vector<uint16_t> sections_;  // by event: those that record it or wait for it, a bit each
  std::vector<uint8_t> recorded_;   // by event: kinds of the section that have recorded it so far
};

// An obstacle that takes no knowledge of events to see: most programs of several ranks have it.
bool HasCollective(const Program& program) {
  const uint8_t kinds = MicroStepKinds(program.setup.batch.grad_accum);
  const auto has = [&](Section section) {
    const std::vector<Instruction>& list = program.section(section);
    return std::any_of(list.begin(), list.end(), [&](const Instruction& instruction) {
      return std::holds_alternative<Collective>(instruction.op) &&
             RunsIn(instruction, section, kinds);
    });
  };
  return has(Section::kMicroStep) || has(Section::kOptimizerStep);
}

// Calls launch(stream, i) for each launch on a stream of the GPU, and close(stream) for each
// instruction that ends a run of them.
template <typename Launch, typename Close>
void ForEachLaunch(const Program& program, Section section, uint8_t kinds, const Launch& launch,
                   const Close& close) {
  const std::vector<Instruction>& list = program.section(section);
  for (uint32_t i = 0; i < list.size(); ++i) {
    const Instruction& instruction = list[i];
    if (OnHost(instruction.stream) || !RunsIn(instruction, section, kinds)) continue;
    // Memory is there already: streams know nothing of these.
    if (std::holds_alternative<Alloc>(instruction.op) ||
        std::holds_alternative<Free>(instruction.op)) {
      continue;
    }
    const auto stream = static_cast<size_t>(instruction.stream);
    if (std::holds_alternative<LaunchKernel>(instruction.op)) {
      launch(stream, i);
    } else {
      close(stream);
    }
  }
}

}  // namespace

std::optional<ReplayObstacle> FindReplayObstacle(const Program& program) {
  ObstacleFinder finder(program);
  for (const Section section : {Section::kMicroStep, Section::kOptimizerStep}) {
    if (const Obstacle found = finder.In(section)) return found;
  }
  return std::nullopt;
}

std::optional<ReplayObstacle> FindReplayObstacle(const Program& program, Section section) {
  return ObstacleFinder(program).In(section);
}

LaunchRuns FindLaunchRuns(const Program& program, Section section, uint8_t kinds) {
  LaunchRuns found;
  found.run_of.assign(program.section(section).size(), LaunchRuns::kNone);
  std::array<std::vector<uint32_t>, kStreams> open;
  const auto close = [&](size_t stream) {
    std::vector<uint32_t>& launches = open[stream];
    if (launches.size() > 1) {
      for (const uint32_t i : launches) found.run_of[i] = static_cast<int32_t>(found.runs.size());
      found.runs.push_back(std::move(launches));
    }
    launches.clear();
  };
  const auto launch = [&](size_t stream, uint32_t i) { open[stream].push_back(i); };
  ForEachLaunch(program, section, kinds, launch, close);
  for (size_t stream = 0; stream < open.size(); ++stream) close(stream);
  return found;
}

ReplayCount CountReplayed(const Program& program) {
  const bool whole_steps = !HasCollective(program) && !FindReplayObstacle(program);
  ReplayCount count;
  const auto add = [&](Section section, uint8_t kind, bool whole) {
    if (program.section(section).empty()) return;
    if (!whole) {
      std::array<int64_t, kStreams> open{};
      const auto close = [&](size_t stream) {
        if (open[stream] > 1) {
          ++count.graphs;
          count.nodes += open[stream];
        }
        open[stream] = 0;
      };
      const auto launch = [&](size_t stream, uint32_t) { ++open[stream]; };
      ForEachLaunch(program, section, kind, launch, close);
      for (size_t stream = 0; stream < open.size(); ++stream) close(stream);
      return;
    }
    ++count.graphs;
    for (const Instruction& instruction : program.section(section)) {
      if (!RunsIn(instruction, section, kind)) continue;
      if (std::holds_alternative<LaunchKernel>(instruction.op) ||
          std::holds_alternative<Copy>(instruction.op)) {
        ++count.nodes;
      }
    }
  };
  const uint8_t kinds = MicroStepKinds(program.setup.batch.grad_accum);
  for (const uint8_t kind : {kOnly, kFirst, kMiddle, kLast}) {
    if ((kinds & kind) != 0) add(Section::kMicroStep, kind, whole_steps);
  }
  add(Section::kOptimizerStep, kEvery, whole_steps);
  if (!program.section(Section::kDecode).empty()) {
    add(Section::kDecode, kEvery, !FindReplayObstacle(program, Section::kDecode));
  }
  return count;
}

}  // namespace zeroplan
