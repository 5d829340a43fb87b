#include "executor/collectives/cuda/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/thread.h"
#include "core/program/program.h"
#include "executor/device/cuda/cuda_handles.h"
#include "executor/device/cuda/cuda_libraries.h"
#include "executor/process/host_text.h"

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
    case Dtype::kNf4:  // sent as bytes (SentDtype)
    case Dtype::kInt8Blocks:
    case Dtype::kInt4Blocks:
    case Dtype::kI16:  // never sent
    case Dtype::kDynamic8:
    case Dtype::kUnsignedDynamic8:
    case Dtype::kE4M3:
    case Dtype::kE5M2:
      break;
  }
  return ncclUint8;
}

// Opens a group that a throw closes too.
class NcclGroup {
 public:
  NcclGroup() { ZEROPLAN_NCCL(GroupStart); }
  ~NcclGroup() {
    if (open_) Nccl().GroupEnd();
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  void End() {
    open_ = false;
    ZEROPLAN_NCCL(GroupEnd);
  }

 private:
  bool open_ = true;
};

struct SetUpResult {
  std::atomic<bool> done{false};
  ncclResult_t status = ncclSuccess;  // both before done
  ncclComm_t communicator = nullptr;
};

// On a thread of its own, which is left behind where the others do not come: the process is about
// to end then. A communicator that does not block (ncclConfig_t::blocking) could be given up too,
// but NCCL 2.28 starts a thread for each of its collectives, in every step.
// `make(&communicator)`: the call of NCCL that comes back once all `ranks` ranks have made it.
template <typename Make>
ncclComm_t SetUp(const ProcessGroup& group, int ranks, double limit_seconds, const char* call,
                 Make make) {
  Nccl();  // throws here, and not on the thread
  int device = 0;
  ZEROPLAN_CUDA(cudaGetDevice(&device));
  const auto result = std::make_shared<SetUpResult>();
  StartThread("the set-up of NCCL", [result, device, make] {
    cudaSetDevice(device);
    result->status = make(&result->communicator);
    result->done.store(true, std::memory_order_release);
  }).detach();
  const auto begin = std::chrono::steady_clock::now();
  for (Patience patience; !result->done.load(std::memory_order_acquire); patience.Pause()) {
    group.ThrowIfFailed();
    const double waited =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (limit_seconds <= 0 || waited < limit_seconds) continue;
    const char* interface = std::getenv("NCCL_SOCKET_IFNAME");
    ThrowRuntime(
        "NCCL: setting up a communicator of {} ranks has not ended after {:.0f} s on rank {}{} "
        "(NCCL_SOCKET_IFNAME is {}); the network between the hosts may not let all of them reach "
        "one another: 'zeroplan doctor --hosts' says where, NCCL_DEBUG=INFO what NCCL does",
        ranks, waited, group.rank(), OnHostText(group.host_address()),
        interface == nullptr || *interface == '\0' ? "not set" : interface);
  }
  CheckNccl(result->status, call);
  return result->communicator;
}

}  // namespace

void CheckNccl(ncclResult_t status, const char* call, ncclComm_t communicator) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  ThrowRuntime("NCCL: {} in {}: {}", Nccl().GetErrorString(status), call,
               Nccl().GetLastError(communicator));
}

NcclCommunicator::NcclCommunicator(ProcessGroup& group, double limit_seconds)
    : rank_(group.rank()), world_size_(group.world_size()) {
  ncclUniqueId id;
  if (rank_ == 0) ZEROPLAN_NCCL(GetUniqueId, &id);
  group.Broadcast(std::as_writable_bytes(std::span(&id, 1)));
  communicator_.reset(SetUp(group, world_size_, limit_seconds, "ncclCommInitRank",
                            [id, rank = rank_, ranks = world_size_](ncclComm_t* made) {
                              return Nccl().CommInitRank(made, ranks, id, rank);
                            }));
}

NcclCommunicator::NcclCommunicator(ProcessGroup& group, NcclCommunicator& all, const RankAxes& axes,
                                   RankAxis axis, double limit_seconds)
    : rank_(axes.Place(axis, group.rank())), world_size_(axes.Size(axis)) {
  try {
    communicator_.reset(SetUp(
        group, world_size_, limit_seconds, "ncclCommSplit",
        [parent = all.communicator_.get(), color = axes.Group(axis, group.rank()), rank = rank_](
            ncclComm_t* made) { return Nccl().CommSplit(parent, color, rank, made, nullptr); }));
  } catch (...) {
    // The thread that is left behind may be splitting it still.
    static_cast<void>(all.communicator_.release());
    throw;
  }
}

void NcclCommunicator::Destroy::operator()(ncclComm_t communicator) const noexcept {
  const ncclResult_t status = Nccl().CommDestroy(communicator);
  if (status == ncclSuccess) return;
  try {
    LogWarning("ncclCommDestroy: {}", Nccl().GetErrorString(status));
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
      ZEROPLAN_NCCL(AllReduce, segment.src, segment.dst, segment.elements, type, ncclSum, comm,
                    stream);
      return;
    case CollectiveKind::kReduceScatter:
      ZEROPLAN_NCCL(ReduceScatter, segment.src, segment.dst, segment.elements, type, ncclSum, comm,
                    stream);
      return;
    case CollectiveKind::kAllGather:
      ZEROPLAN_NCCL(AllGather, segment.src, segment.dst, segment.elements, type, comm, stream);
      return;
    case CollectiveKind::kBroadcast:
      for (int root = 0; root < world_size_; ++root) {
        std::byte* part =
            segment.dst + static_cast<uint64_t>(root) * segment.elements * element_bytes;
        const std::byte* own = root == rank_ ? segment.src : part;
        ZEROPLAN_NCCL(Broadcast, own, part, segment.elements, type, root, comm, stream);
      }
      return;
    case CollectiveKind::kReduceToOwners:
      ReduceToOwners(segment, element_bytes, type, stream);
      return;
    case CollectiveKind::kAllToAll:
      for (int peer = 0; peer < world_size_; ++peer) {
        const uint64_t at = static_cast<uint64_t>(peer) * segment.elements * element_bytes;
        ZEROPLAN_NCCL(Send, segment.src + at, segment.elements, type, peer, comm, stream);
        ZEROPLAN_NCCL(Recv, segment.dst + at, segment.elements, type, peer, comm, stream);
      }
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
    ZEROPLAN_NCCL(Reduce, src, dst, end - begin, type, ncclSum, owner, communicator_.get(), stream);
  }
}

std::string NcclCommunicator::AsyncProblem() const {
  const std::lock_guard lock(mutex_);
  if (communicator_ == nullptr) return {};
  ncclResult_t status = ncclSuccess;
  if (Nccl().CommGetAsyncError(communicator_.get(), &status) != ncclSuccess) return {};
  if (status == ncclSuccess || status == ncclInProgress) return {};
  return fmt::format("NCCL: {} in a collective: {}", Nccl().GetErrorString(status),
                     Nccl().GetLastError(communicator_.get()));
}

void NcclCommunicator::CheckAsyncError() const {
  if (const std::string problem = AsyncProblem(); !problem.empty()) ThrowRuntime("{}", problem);
}

void NcclCommunicator::Abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (communicator_ != nullptr) Nccl().CommAbort(communicator_.release());
}

}  // namespace zeroplan
