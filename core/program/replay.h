// Whether the steps of a program, and its section decode, can be run as graphs: each section
// captured once, as a GPU's driver records it, and replayed from then on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// What a graph would not do as the instructions do.
enum class ReplayObstacle : uint8_t {
  kHostStream,    // threads of the host run instructions: a graph holds the GPU's alone
  kCollective,    // ranks would have to capture and replay together
  kPageableCopy,  // the host must wait for the stream before the driver reads pageable memory
  kCarriedEvent,  // recorded in one repetition of a section, waited for in another: a graph can
                  // neither wait for events of another nor be waited for inside
  kTimedCopy,     // between device and host, of more than tokens, step state and logits: a step
                  // reports how long compute waits for it, a graph does not
};

// The first obstacle in micro_step and optimizer_step, in list order; none if both can be replayed,
// micro_step as one graph for each kind of micro-step.
std::optional<ReplayObstacle> FindReplayObstacle(const Program& program);
// The first in one section.
std::optional<ReplayObstacle> FindReplayObstacle(const Program& program, Section section);

// Where a section cannot be replayed as a whole, runs of launches can: two or more that follow one
// another on their stream, in list order, with no copy, collective or event of that stream between
// them. A run may be issued where its first launch stands: nothing it depends on comes later.
struct LaunchRuns {
  static constexpr int32_t kNone = -1;

  std::vector<std::vector<uint32_t>> runs;  // indices into the section
  std::vector<int32_t> run_of;              // by index into the section: its run, or kNone
};

// The runs of `section`, of the instructions that run in micro-steps of `kinds`, on streams of the
// GPU.
LaunchRuns FindLaunchRuns(const Program& program, Section section, uint8_t kinds);

// What an engine has as graphs once it has captured them.
struct ReplayCount {
  int64_t graphs = 0;
  int64_t nodes = 0;  // launches and copies in them
};
ReplayCount CountReplayed(const Program& program);

}  // namespace zeroplan
