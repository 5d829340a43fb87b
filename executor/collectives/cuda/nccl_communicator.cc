#include "executor/collectives/cuda/nccl_communicator.h"

#include <algorithm>
#include <cstddef>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/program/program.h"

namespace zeroplan {
namespace {

ncclDataType_t NcclType(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return ncclFloat32;
    case Dtype::kBF16:
      return ncclBfloat16;
    case Dtype::kF16:
      return ncclFloat16;
    case Dtype::kF64:
      return ncclFloat64;
    case Dtype::kI32:
      return ncclInt32;
    case Dtype::kU8:
      return ncclUint8;
  }
  return ncclUint8;
}

// Opens a group that a throw closes too.
class NcclGroup {
 public:
  NcclGroup() { ZEROPLAN_NCCL(ncclGroupStart()); }
  ~NcclGroup() {
    if (open_) ncclGroupEnd();
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  void End() {
    open_ = false;
    ZEROPLAN_NCCL(ncclGroupEnd());
  }

 private:
  bool open_ = true;
};

}  // namespace

void CheckNccl(ncclResult_t status, const char* call, ncclComm_t communicator) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  ThrowRuntime("NCCL: {} in {}: {}", ncclGetErrorString(status), call,
               ncclGetLastError(communicator));
}

NcclCommunicator::NcclCommunicator(ProcessGroup& group)
    : rank_(group.rank()), world_size_(group.world_size()) {
  ncclUniqueId id{};
  if (rank_ == 0) ZEROPLAN_NCCL(ncclGetUniqueId(&id));
  group.Broadcast(std::as_writable_bytes(std::span(id.internal)));
  ncclComm_t communicator = nullptr;
  ZEROPLAN_NCCL(ncclCommInitRank(&communicator, world_size_, id, rank_));
  communicator_.reset(communicator);
}

void NcclCommunicator::Destroy::operator()(ncclComm_t communicator) const noexcept {
  const ncclResult_t status = ncclCommDestroy(communicator);
  if (status == ncclSuccess) return;
  try {
    LogWarning("ncclCommDestroy: {}", ncclGetErrorString(status));
  } catch (...) {
  }
}

void NcclCommunicator::Issue(const CommCall& call, cudaStream_t stream) {
  const ncclDataType_t type = NcclType(call.dtype);
  NcclGroup group;
  for (const CommSegment& segment : call.segments) IssueSegment(call, segment, type, stream);
  group.End();
}

void NcclCommunicator::IssueSegment(const CommCall& call, const CommSegment& segment,
                                    ncclDataType_t type, cudaStream_t stream) {
  ncclComm_t comm = communicator_.get();
  const uint64_t element_bytes = DtypeBytes(call.dtype);
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      ZEROPLAN_NCCL(
          ncclAllReduce(segment.src, segment.dst, segment.elements, type, ncclSum, comm, stream));
      return;
    case CollectiveKind::kReduceScatter:
      ZEROPLAN_NCCL(ncclReduceScatter(segment.src, segment.dst, segment.elements, type, ncclSum,
                                      comm, stream));
      return;
    case CollectiveKind::kAllGather:
      ZEROPLAN_NCCL(ncclAllGather(segment.src, segment.dst, segment.elements, type, comm, stream));
      return;
    case CollectiveKind::kBroadcast:
      for (int root = 0; root < world_size_; ++root) {
        std::byte* part =
            segment.dst + static_cast<uint64_t>(root) * segment.elements * element_bytes;
        const std::byte* own = root == rank_ ? segment.src : part;
        ZEROPLAN_NCCL(ncclBroadcast(own, part, segment.elements, type, root, comm, stream));
      }
      return;
    case CollectiveKind::kReduceToOwners:
      ReduceToOwners(segment, element_bytes, type, stream);
      return;
  }
}

void NcclCommunicator::ReduceToOwners(const CommSegment& segment, uint64_t element_bytes,
                                      ncclDataType_t type, cudaStream_t stream) {
  for (int owner = 0; owner < world_size_; ++owner) {
    const uint64_t own = static_cast<uint64_t>(owner) * segment.elements;
    const uint64_t begin = std::clamp(segment.begin, own, own + segment.elements);
    const uint64_t end = std::clamp(segment.end, own, own + segment.elements);
    if (begin >= end) continue;
    const std::byte* src = segment.src + (begin - segment.begin) * element_bytes;
    std::byte* dst = owner == rank_ ? segment.dst + (begin - own) * element_bytes : nullptr;
    ZEROPLAN_NCCL(
        ncclReduce(src, dst, end - begin, type, ncclSum, owner, communicator_.get(), stream));
  }
}

void NcclCommunicator::CheckAsyncError() const {
  if (communicator_ == nullptr) return;
  ncclResult_t status = ncclSuccess;
  ZEROPLAN_NCCL(ncclCommGetAsyncError(communicator_.get(), &status));
  CheckNccl(status, "a collective", communicator_.get());
}

void NcclCommunicator::Abort() noexcept {
  if (communicator_ != nullptr) ncclCommAbort(communicator_.release());
}

}  // namespace zeroplan
