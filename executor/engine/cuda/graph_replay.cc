#include "executor/engine/cuda/graph_replay.h"

namespace zeroplan {

void GraphReplay::BeginCapture() {
  ZEROPLAN_CUDA(cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal));
  capturing_ = true;
}

CudaGraphExec GraphReplay::EndCapture() {
  capturing_ = false;
  cudaGraph_t captured = nullptr;
  ZEROPLAN_CUDA(cudaStreamEndCapture(compute_, &captured));
  const CudaGraph graph(captured);
  cudaGraphExec_t exec = nullptr;
  ZEROPLAN_CUDA(cudaGraphInstantiate(&exec, captured, 0));
  return CudaGraphExec(exec);
}

}  // namespace zeroplan
