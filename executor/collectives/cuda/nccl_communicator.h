// Collectives between ranks that are processes, one a GPU, over NCCL.
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

// Throws Error(kRuntime) naming the call and NCCL's own last word on it.
void CheckNccl(ncclResult_t status, const char* call, ncclComm_t communicator = nullptr);

class NcclCommunicator {
 public:
  // Every rank of `group` calls this at once, its GPU current. The id travels over the group.
  // Throws Error(kRuntime) where not all ranks have come within `limit_seconds` (0: waits for
  // ever), and the group's failure once it has one.
  explicit NcclCommunicator(ProcessGroup& group, double limit_seconds = 300);
  // The same, of the ranks in this rank's group of `axis`: `all`, of all ranks, is split into its
  // groups.
  NcclCommunicator(ProcessGroup& group, NcclCommunicator& all, const RankAxes& axes, RankAxis axis,
                   double limit_seconds);

  int world_size() const { return world_size_; }

  // Issues the call's segments as one group on `stream`. Addresses are device memory, and as
  // CommSegment says.
  void Issue(const CommCall& call, cudaStream_t stream);

  // What NCCL has found wrong since; empty: nothing. Cheap; any thread.
  std::string AsyncProblem() const;
  // Throws it as Error(kRuntime).
  void CheckAsyncError() const;
  // Ends what is under way on this rank, for a run that has failed; the communicator is gone after.
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

  const int rank_;  // its place among them
  const int world_size_;
  mutable std::mutex mutex_;  // of AsyncProblem's look against the end of what it looks at
  std::unique_ptr<std::remove_pointer_t<ncclComm_t>, Destroy> communicator_;
};

}  // namespace zeroplan

#define ZEROPLAN_NCCL(call) ::zeroplan::CheckNccl((call), #call)
