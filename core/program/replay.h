// Whether the steps of a program, and its section decode, can be replayed as CUDA graphs: each
// section captured once and replayed from then on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/program/program.h"

namespace zeroplan {

// The reason why a graph would not do what the instructions do.
enum class ReplayObstacle : uint8_t {
  kHostStream,    // host threads run instructions: a graph holds GPU work alone
  kCollective,    // ranks would have to capture and replay together
  kPageableCopy,  // the host must wait for the stream before the driver reads pageable memory
  // An event recorded in one repetition of a section and waited for in another: a graph can neither
  // wait for events of another graph nor be waited for inside.
  kCarriedEvent,
  // A copy between device and host of more than tokens, step state and logits: a step reports how
  // long compute waits for it, a graph does not.
  kTimedCopy,
};

// The first obstacle in micro_step and optimizer_step, in list order; none if both can be replayed.
// micro_step becomes one graph for each kind of micro-step.
std::optional<ReplayObstacle> FindReplayObstacle(const Program& program);
// The first obstacle in one section.
std::optional<ReplayObstacle> FindReplayObstacle(const Program& program, Section section);

// Runs of launches can be replayed where a section as a whole cannot. A run is two or more launches
// that follow one another on their stream, in list order, with no copy, collective or event of that
// stream between them. It may be issued in the place of its first launch: it depends on nothing
// that comes later.
struct LaunchRuns {
  static constexpr int32_t kNone = -1;

  std::vector<std::vector<uint32_t>> runs;  // indices into the section
  std::vector<int32_t> run_of;              // by index into the section: its run, or kNone
};

// The runs of `section` on the GPU's streams, among the instructions that run in micro-steps of
// `kinds`.
LaunchRuns FindLaunchRuns(const Program& program, Section section, uint8_t kinds);

// The graphs that an engine has captured.
struct ReplayCount {
  int64_t graphs = 0;
  int64_t nodes = 0;  // launches and copies in them
};
ReplayCount CountReplayed(const Program& program);

}  // namespace zeroplan
