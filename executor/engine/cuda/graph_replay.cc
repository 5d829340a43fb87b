#include "executor/engine/cuda/graph_replay.h"

namespace zeroplan {

GraphReplay::Runs* GraphReplay::RunsOf(Section section, When kind) {
  // While a section is captured as a whole, its launches become nodes of that graph.
  if (whole_ || !Replays(section)) return nullptr;
  const auto [found, added] = runs_.try_emplace({section, kind});
  Runs& runs = found->second;
  if (added) {
    runs.launches = FindLaunchRuns(program_, section, kind);
    runs.graphs.resize(runs.launches.runs.size());
  }
  return &runs;
}

void GraphReplay::BeginCapture(cudaStream_t stream) {
  ZEROPLAN_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  capturing_ = true;
}

CudaGraphExec GraphReplay::EndCapture(cudaStream_t stream) {
  capturing_ = false;
  cudaGraph_t captured = nullptr;
  ZEROPLAN_CUDA(cudaStreamEndCapture(stream, &captured));
  const CudaGraph graph(captured);
  cudaGraphExec_t exec = nullptr;
  ZEROPLAN_CUDA(cudaGraphInstantiate(&exec, captured, 0));
  return CudaGraphExec(exec);
}

}  // namespace zeroplan
