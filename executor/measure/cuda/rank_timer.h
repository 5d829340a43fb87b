// Times concurrent work of all ranks of a group: the slowest rank's time counts.
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
  // All ranks of `group` at once; joins a communicator if there are several.
  explicit RankTimer(ProcessGroup& group);
  ~RankTimer();
  RankTimer(const RankTimer&) = delete;
  RankTimer& operator=(const RankTimer&) = delete;

  ProcessGroup& group() { return group_; }
  NcclCommunicator& communicator() { return *communicator_; }
  // Splits the communicator into the groups of `axis`; returns this rank's. All ranks at once, only
  // once.
  NcclCommunicator& Split(const RankAxes& axes, RankAxis axis);
  cudaStream_t stream() const { return stream_.get(); }  // collectives go first, as in training

  // Holds the stream up until all ranks have issued about `calls` more calls and have met on their
  // GPUs.
  void Align(int calls);
  // Waits until the GPU reaches `event`; throws if another rank fails, because the GPU might then
  // wait for ever.
  void WaitFor(cudaEvent_t event);
  // Seconds between two recorded events; waits for the second.
  double SecondsBetween(cudaEvent_t begin, cudaEvent_t end);
  // Median over `rounds` of the slowest rank's seconds of one call of `run`, which issues to
  // stream(); a round is `calls` calls.
  double SlowestSeconds(int rounds, int calls, const std::function<void()>& run);
  // The same of `round`, which returns this rank's seconds of one round.
  double SlowestOf(int rounds, const std::function<double()>& round);

 private:
  ProcessGroup& group_;
  const int exceptions_;  // in flight at construction
  std::optional<NcclCommunicator> communicator_, part_;
  CudaStream stream_;
  CudaEvent begin_, end_;
  DeviceMemory token_;
};

}  // namespace zeroplan
