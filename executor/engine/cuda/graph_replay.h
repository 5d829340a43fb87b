// A step's sections as CUDA graphs: captured once, replayed from then on. Saves the gaps between
// kernels, and the time to issue them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <utility>

#include "core/program/program.h"
#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {

class GraphReplay {
 public:
  // `compute`: the stream that all others fork from at a section's begin and join at its end, so
  // that capturing it captures them all. `allowed`: whether steps may be replayed at all.
  GraphReplay(cudaStream_t compute, bool allowed) : compute_(compute), allowed_(allowed) {}

  // True where `section` is to be replayed from now on: of a step, once enough of them have run.
  bool Replays(Section section) const {
    return allowed_ && steps_ >= kStepsBefore &&
           (section == Section::kMicroStep || section == Section::kOptimizerStep);
  }
  // Launches the graph of a section and kind; before the first time issue() says what it is.
  template <typename Issue>
  void Launch(Section section, When kind, Issue&& issue) {
    CudaGraphExec& graph = graphs_[{section, kind}];
    if (graph == nullptr) {
      BeginCapture();
      issue();
      graph = EndCapture();
    }
    ZEROPLAN_CUDA(cudaGraphLaunch(graph.get(), compute_));
  }
  // What is issued becomes part of a graph, and runs when that is launched.
  bool capturing() const { return capturing_; }

  void CountStep() { ++steps_; }

 private:
  // Graphs replace single launches once what is loaded at first use is there.
  static constexpr int64_t kStepsBefore = 3;

  void BeginCapture();
  CudaGraphExec EndCapture();

  const cudaStream_t compute_;
  const bool allowed_;
  int64_t steps_ = 0;
  bool capturing_ = false;
  std::map<std::pair<Section, When>, CudaGraphExec> graphs_;
};

}  // namespace zeroplan
