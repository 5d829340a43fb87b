// Times what all ranks of a group do at once: the slowest rank's time counts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "executor/collectives/cuda/nccl_communicator.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/measure/cuda/kernel_bench.h"
#include "executor/process/process_group.h"

namespace zeroplan {

class RankTimer {
 public:
  // All ranks of `group` at once; joins a communicator where there are several.
  explicit RankTimer(ProcessGroup& group);
  ~RankTimer();
  RankTimer(const RankTimer&) = delete;
  RankTimer& operator=(const RankTimer&) = delete;

  ProcessGroup& group() { return group_; }
  NcclCommunicator& communicator() { return *communicator_; }
  // Splits that into the groups of `axis`; this rank's. All ranks at once, one time.
  NcclCommunicator& Split(const RankAxes& axes, RankAxis axis);
  cudaStream_t stream() const { return stream_.get(); }  // collectives go first, as in training

  // Holds the stream up until all ranks have issued about `calls` calls more and have met on their
  // GPUs.
  void Align(int calls);
  // Waits until the GPU gets to `event`; throws if another rank fails, for which the GPU might wait
  // for ever.
  void WaitFor(cudaEvent_t event);
  // Seconds between two recorded events, once the second has come.
  double SecondsBetween(cudaEvent_t begin, cudaEvent_t end);
  // Median over `rounds` of the slowest rank's seconds of one call of `run`, which issues to
  // stream(); `calls` of them are a round.
  double SlowestSeconds(int rounds, int calls, const std::function<void()>& run);
  // The same of `round`, which returns this rank's seconds of one round.
  double SlowestOf(int rounds, const std::function<double()>& round);

 private:
  ProcessGroup& group_;
  const int exceptions_;  // under way when this was made
  std::optional<NcclCommunicator> communicator_, part_;
  CudaStream stream_;
  CudaEvent begin_, end_;
  DeviceMemory token_;
};

}  // namespace zeroplan
