#include "executor/engine/cuda/graph_replay.h"

namespace zeroplan {

GraphReplay::Runs* GraphReplay::RunsOf(Section section, When kind) {
  // While a section is captured as a whole, its launches become nodes of that graph.
  if (IsWhole(section) || !Replays(section)) return nullptr;
  const auto [found, added] = runs_.try_emplace({section, kind});
  Runs& runs = found->second;
  if (added) {
    runs.launches = FindLaunchRuns(program_, section, kind);
    runs.graphs.resize(runs.launches.runs.size());
  }
  return &runs;
}

}  // namespace zeroplan
