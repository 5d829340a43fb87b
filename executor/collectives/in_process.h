// Collectives between ranks that are threads of one process.
//
// Every rank of the group calls Run with the same kind, dtype and sizes, in the same order; a rank
// that does not is reported, not deadlocked. Sums go over ranks in rank order, in fp32 (fp64 for
// kF64), and are rounded to the dtype once: all ranks see the same bits, run after run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/program/program.h"
#include "executor/collectives/barrier.h"

namespace zeroplan {

class ThreadPool;

// One rank's addresses of one Segment. Memory belongs to the caller and must stay until Run
// returned everywhere.
struct CommSegment {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  // kAllReduce: of src and of dst. kReduceScatter, kAllGather, kBroadcast: of one rank's part.
  // kReduceToOwners: of one rank's shard, which dst points to.
  uint64_t elements = 0;
  // kReduceToOwners: src holds elements [begin, end) of the unit.
  uint64_t begin = 0, end = 0;
};

struct CommCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Dtype dtype = Dtype::kF32;
  std::span<const CommSegment> segments;
};

class Communicator {
 public:
  explicit Communicator(int world_size);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int world_size() const { return world_size_; }

  // Called by each rank on its own thread. `pool` (may be null) shares a rank's part of the work.
  // In place is fine where each element of the result lies at its own place of the source:
  // all-reduce with src == dst, reduce-scatter into part [rank] of src, all-gather and broadcast
  // from part [rank] of dst, reduce-to-owners into the shard's place in src. Throws GroupAborted if
  // another rank failed.
  void Run(int rank, const CommCall& call, ThreadPool* pool);

  // What the rank's calls waited for other ranks since this was last asked. From its thread.
  double TakeWaitedSeconds(int rank) {
    return std::exchange(slots_[static_cast<size_t>(rank)].waited_seconds, 0);
  }

  // Lets every waiting rank go, now and later. Never blocks.
  void Abort(std::exception_ptr cause) noexcept { barrier_.Abort(std::move(cause)); }
  // Why the group was aborted; null: it was not.
  std::exception_ptr cause() const { return barrier_.cause(); }

 private:
  // What the other ranks may read of a rank between two barriers.
  struct Slot {
    CommCall call;
    // Addresses of one segment on every rank: kept here so that a call allocates nothing.
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> targets;
    double waited_seconds = 0;
  };

  void Meet(int rank);

  void CheckSameCall(int rank) const;
  void RunSegment(int rank, size_t index, ThreadPool* pool);

  const int world_size_;
  AbortableBarrier barrier_;
  std::vector<Slot> slots_;
};

// Of a program's ranks: a communicator for each group of each axis that a collective runs over.
class AxisCommunicators {
 public:
  explicit AxisCommunicators(const Program& program);

  // The rank's part of a collective over its group of `axis`; see Communicator.
  void Run(RankAxis axis, int rank, const CommCall& call, ThreadPool* pool);
  double TakeWaitedSeconds(int rank);
  void Abort(const std::exception_ptr& cause) noexcept;

 private:
  const RankAxes axes_;
  std::array<std::vector<std::unique_ptr<Communicator>>, kAxes> groups_;
};

}  // namespace zeroplan
