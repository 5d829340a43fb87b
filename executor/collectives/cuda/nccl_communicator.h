// Collectives over NCCL between ranks that are processes, one a GPU.
//
// Ranks issue the same calls in the same order on each communicator. Sums are NCCL's: in its own
// order over ranks, rounded to the dtype at every hop.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>

#include "executor/collectives/in_process.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// Throws Error(kRuntime) naming the call and NCCL's last error message about it.
void CheckNccl(ncclResult_t status, const char* call, ncclComm_t communicator = nullptr);

class NcclCommunicator {
 public:
  // Every rank of `group` calls this at once, with its GPU current. The group transports the id.
  // Throws Error(kRuntime) if not all ranks arrive within `limit_seconds` (0: waits for ever), and
  // the group's failure once it has one.
  explicit NcclCommunicator(ProcessGroup& group, double limit_seconds = 300);
  // The same for the ranks in this rank's group of `axis`: splits `all`, a communicator of all
  // ranks, into its groups.
  NcclCommunicator(ProcessGroup& group, NcclCommunicator& all, const RankAxes& axes, RankAxis axis,
                   double limit_seconds);

  int world_size() const { return world_size_; }

  // Issues the call's segments as one group on `stream`. Addresses are device memory, as defined by
  // CommSegment.
  void Issue(const CommCall& call, cudaStream_t stream);

  // NCCL's asynchronous error; empty: none. Cheap; any thread.
  std::string AsyncProblem() const;
  // Throws that error as Error(kRuntime).
  void CheckAsyncError() const;
  // Aborts all work under way on this rank, for a run that has failed; destroys the communicator.
  void Abort() noexcept;

 private:
  struct Destroy {
    using pointer = ncclComm_t;
    void operator()(ncclComm_t communicator) const noexcept;
  };

  void IssueSegment(const CommCall& call, const CommSegment& segment, ncclDataType_t type,
                    cudaStream_t stream);
  void ReduceToOwners(const CommSegment& segment, uint64_t element_bytes, ncclDataType_t type,
                      cudaStream_t stream);

  const int rank_;  // this rank's place among them
  const int world_size_;
  mutable std::mutex mutex_;  // serialises AsyncProblem with the end of communicator_
  std::unique_ptr<std::remove_pointer_t<ncclComm_t>, Destroy> communicator_;
};

}  // namespace zeroplan

// Calls a function of NCCL, named without its prefix; include
// executor/device/cuda/cuda_libraries.h.
#define ZEROPLAN_NCCL(function, ...) \
  ::zeroplan::CheckNccl(::zeroplan::Nccl().function(__VA_ARGS__), "nccl" #function)
