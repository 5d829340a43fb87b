// CUDA graphs of a step, and of a token (section decode): captured once, replayed from then on.
// They save the gaps between kernels, and the time to issue them. A section becomes one graph if
// possible, else each run of launches in it does.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "core/program/program.h"
#include "core/program/replay.h"
#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {

class GraphReplay {
 public:
  // `allowed`: whether anything may be replayed at all. `program` must outlive it.
  GraphReplay(const Program& program, bool allowed)
      : program_(program),
        allowed_(allowed),
        whole_steps_(!FindReplayObstacle(program)),
        whole_decode_(!FindReplayObstacle(program, Section::kDecode)) {}

  // Whether `section` is replayed as one graph from now on.
  bool ReplaysWhole(Section section) const { return IsWhole(section) && Replays(section); }
  // Launches the graph of a section and kind on `compute`, the stream that all others fork from at
  // the section's begin and join at its end. The first call captures the graph from issue().
  template <typename Issue>
  void LaunchWhole(Section section, When kind, cudaStream_t compute, Issue&& issue) {
    Launch(sections_[{section, kind}], compute, issue);
  }

  // The runs of launches of a section and kind, each with its graph.
  struct Runs {
    LaunchRuns launches;
    std::vector<CudaGraphExec> graphs;  // null before the first launch

    int32_t RunOf(size_t index) const { return launches.run_of[index]; }
    bool Begins(size_t index) const {
      return launches.runs[static_cast<size_t>(RunOf(index))].front() == index;
    }
  };
  // nullptr if launches are issued one by one.
  Runs* RunsOf(Section section, When kind) {
    // While a section is captured as one graph, its launches become nodes of that graph.
    if (IsWhole(section) || !Replays(section)) return nullptr;
    const auto [found, added] = runs_.try_emplace({section, kind});
    Runs& runs = found->second;
    if (added) {
      runs.launches = FindLaunchRuns(program_, section, kind);
      runs.graphs.resize(runs.launches.runs.size());
    }
    return &runs;
  }
  // Launches run `run` on the stream of all its launches. The first call captures it by calling
  // issue(index) for each.
  template <typename Issue>
  void LaunchRun(Runs& runs, int32_t run, cudaStream_t stream, Issue&& issue) {
    const auto r = static_cast<size_t>(run);
    Launch(runs.graphs[r], stream, [&] {
      for (const uint32_t index : runs.launches.runs[r]) issue(index);
    });
  }

  // Whether issued work becomes part of a graph, to run when the graph is launched.
  bool capturing() const { return capturing_; }

  // Counts that `section` was issued.
  void Count(Section section) {
    if (section == Section::kOptimizerStep) ++steps_;
    if (section == Section::kDecode) ++decodes_;
  }

 private:
  // Graphs replace single launches once everything loaded at first use is there.
  static constexpr int64_t kStepsBefore = 3;
  using Key = std::pair<Section, When>;

  bool Replays(Section section) const {
    if (section == Section::kDecode) return allowed_ && decodes_ >= kStepsBefore;
    return allowed_ && steps_ >= kStepsBefore &&
           (section == Section::kMicroStep || section == Section::kOptimizerStep);
  }
  bool IsWhole(Section section) const {
    return section == Section::kDecode ? whole_decode_ : whole_steps_;
  }
  template <typename Issue>
  void Launch(CudaGraphExec& graph, cudaStream_t stream, Issue&& issue) {
    if (graph == nullptr) {
      BeginCapture(stream);
      capturing_ = true;
      issue();
      capturing_ = false;
      graph = EndCapture(stream);
    }
    ZEROPLAN_CUDA(cudaGraphLaunch(graph.get(), stream));
  }

  const Program& program_;
  const bool allowed_, whole_steps_, whole_decode_;
  int64_t steps_ = 0, decodes_ = 0;
  bool capturing_ = false;
  std::map<Key, CudaGraphExec> sections_;
  std::map<Key, Runs> runs_;
};

}  // namespace zeroplan
