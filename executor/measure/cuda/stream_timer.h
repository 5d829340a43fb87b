// Times what the GPU takes, not what issuing takes: the stream is held up until a round has been
// issued, as a training step's host runs ahead of its GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {

class StreamTimer {
 public:
  // On the current device. `quick`: shorter rounds.
  explicit StreamTimer(bool quick);

  cudaStream_t stream() const { return stream_.get(); }

  // Median seconds of one call of `run`, which issues to stream() and gets 0, 1, 2, ... to rotate
  // buffers by. A few calls warm up. A round is several calls where they are short.
  double MedianSeconds(const std::function<void(int)>& run);
  // Seconds of `calls` calls, together, behind work that lets them be issued meanwhile.
  double RoundSeconds(int calls, const std::function<void(int)>& run);

 private:
  double round_seconds_;  // wanted of all rounds of one median
  CudaStream stream_;
  CudaEvent begin_, end_;
  int next_ = 0;
};

// Seconds between two recorded events, once the second has come.
double SecondsBetween(cudaEvent_t begin, cudaEvent_t end);

}  // namespace zeroplan
