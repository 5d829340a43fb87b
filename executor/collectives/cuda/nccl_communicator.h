// Collectives between ranks that are processes, one a GPU, over NCCL.
//
// Ranks issue the same calls in the same order on each communicator. Sums are NCCL's: in its own
// order over ranks, rounded to the dtype at every hop.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "executor/collectives/in_process.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// Throws Error(kRuntime) naming the call and NCCL's own last word on it.
void CheckNccl(ncclResult_t status, const char* call, ncclComm_t communicator = nullptr);

// What NCCL may take of the SMs. Where its version does not know a policy, the default's.
enum class CtaPolicy {
  kDefault,     // what is fastest alone
  kEfficiency,  // few, where that costs little
  kZero         // none where the copy engines can do it: gathers within a window
};

class NcclCommunicator {
 public:
  // Every rank of `group` calls this at once, its GPU current. The id travels over the group.
  explicit NcclCommunicator(ProcessGroup& group, CtaPolicy policy = CtaPolicy::kDefault);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int world_size() const { return world_size_; }

  // Makes [memory, +bytes) a symmetric window: from now on collectives may reach it on other ranks.
  // All ranks call this at once, with equal bytes, and pass equal offsets to every later collective
  // (a rank's own part of one in place apart). The memory is ncclMemAlloc's, outlives the
  // communicator, and is registered once. Returns why it is no window, "" for success; that other
  // ranks have come to the same end is for the caller to find out. Where NCCL has windows but these
  // ranks cannot have one, it may say success and go on without.
  std::string RegisterWindow(std::byte* memory, uint64_t bytes);
  // Nothing that uses the window is under way, on any rank.
  void DeregisterWindow() noexcept;

  // Issues the call's segments as one group on `stream`. Addresses are device memory, and as
  // CommSegment says.
  void Issue(const CommCall& call, cudaStream_t stream);

  // Throws Error(kRuntime) if NCCL has found something wrong since; cheap.
  void CheckAsyncError() const;
  // Ends what is under way on this rank, for a run that has failed; the communicator and its window
  // are gone after. Copy engines' gathers cannot be ended: their stream goes on waiting for ranks
  // that are gone.
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

  int rank_;
  int world_size_;
  std::unique_ptr<std::remove_pointer_t<ncclComm_t>, Destroy> communicator_;
  void* window_ = nullptr;  // an ncclWindow_t, which older versions have not
};

}  // namespace zeroplan

#define ZEROPLAN_NCCL(call) ::zeroplan::CheckNccl((call), #call)
