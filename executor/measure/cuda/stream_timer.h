// Times the GPU, not the issuing, under the conditions of training: rounds are graphs, as the
// engine's steps are, on a GPU as warm as the timed work makes it. Under load a GPU lowers its
// clock within a tenth of a second to stay within its power (an H200 from 1980 to about 1500 MHz).
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "executor/device/cuda/cuda_handles.h"

namespace zeroplan {

class StreamTimer {
 public:
  // Works on the current device. `quick`: shorter rounds.
  explicit StreamTimer(bool quick);

  cudaStream_t stream() const { return stream_.get(); }

  // Median seconds of one call of `run`, which issues to stream() and gets 0, 1, 2, ... to rotate
  // `buffers` sets of them by. A round is several calls where they are short.
  double MedianSeconds(int buffers, const std::function<void(int)>& run);
  // Seconds of `calls` calls, together, behind work that lets them be issued meanwhile.
  double RoundSeconds(int calls, const std::function<void(int)>& run);

 private:
  double GraphSeconds(cudaGraphExec_t graph);

  double round_seconds_, warm_seconds_;  // wanted of all rounds of one median, and before them
  CudaStream stream_;
  CudaEvent begin_, end_;
};

// Seconds between two recorded events, once the second has come.
double SecondsBetween(cudaEvent_t begin, cudaEvent_t end);

}  // namespace zeroplan
