// Collectives between ranks that are threads of one process.
//
// Every rank of the group calls Run with the same kind, dtype and sizes, in the same order; a
// mismatch is reported and does not deadlock. Sums add up ranks in rank order, in fp32 (fp64 for
// kF64), and are rounded to the dtype once: all ranks get the same bits, run after run.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/program/program.h"

namespace zeroplan {

// Thrown in the ranks that were waiting for one that failed. AbortableBarrier::cause() has the
// cause.
class GroupAborted : public std::exception {
 public:
  const char* what() const noexcept override { return "another rank failed"; }
};

// A barrier that one thread's failure opens for all.
class AbortableBarrier {
 public:
  explicit AbortableBarrier(int size) : size_(size) {}

  // Returns when all `size` threads have arrived, with their earlier writes visible. Throws
  // GroupAborted, at once and from then on, if the group is aborted before. In one round either all
  // threads return, or all that arrived throw.
  void Wait();
  // The same, but an abort does not open it. REQUIRES: all threads arrive.
  void WaitForAll();

  // Any thread, any number of times: keeps the first cause.
  void Abort(std::exception_ptr cause) noexcept;
  // Null while the group is not aborted.
  std::exception_ptr cause() const;

 private:
  // Opens the round if this thread is its last. REQUIRES: mutex_ is held.
  bool Arrive();

  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  uint64_t round_ = 0;
  std::exception_ptr cause_;
};

class ThreadPool;

// One rank's addresses of one Segment. The caller owns the memory and must keep it until Run has
// returned everywhere.
struct CommSegment {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  // kAllReduce: elements of src and of dst. kReduceScatter, kAllGather, kBroadcast, kAllToAll: of
  // one rank's part. kReduceToOwners: of one rank's shard, which dst points to.
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
  // In-place calls are allowed if each element of the result has its own place in the source:
  // all-reduce with src == dst, reduce-scatter into part [rank] of src, all-gather and broadcast
  // from part [rank] of dst, reduce-to-owners into the shard's place in src. Throws CheckFailure if
  // the ranks' calls differ, and GroupAborted if another rank failed. It returns and throws only
  // when no other rank reads or writes this rank's memory any more.
  void Run(int rank, const CommCall& call, ThreadPool* pool);

  // Seconds that the rank's calls waited for other ranks since the last call. From its thread.
  double TakeWaitedSeconds(int rank) {
    return std::exchange(slots_[static_cast<size_t>(rank)].waited_seconds, 0);
  }

  // Releases every waiting rank, now and later. Never blocks.
  void Abort(std::exception_ptr cause) noexcept { barrier_.Abort(std::move(cause)); }
  // The cause of the abort; null: the group is not aborted.
  std::exception_ptr cause() const { return barrier_.cause(); }

 private:
  // The data of a rank that the other ranks may read between two barriers.
  struct Slot {
    CommCall call;
    // Addresses of one segment on every rank: members, so that a call allocates nothing.
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> targets;
    double waited_seconds = 0;
  };

  void CheckSameCalls() const;
  void RunSegment(int rank, size_t index, ThreadPool* pool);

  const int world_size_;
  AbortableBarrier barrier_;
  std::vector<Slot> slots_;
};

// The communication between the ranks of a program, wherever they run.
class RankCommunicators {
 public:
  virtual ~RankCommunicators() = default;

  // Runs the rank's part of a collective over its group of `axis`; see Communicator.
  virtual void Run(RankAxis axis, int rank, const CommCall& call, ThreadPool* pool) = 0;
  virtual double TakeWaitedSeconds(int rank) = 0;
  virtual void Abort(const std::exception_ptr& cause) noexcept = 0;
};

// Communicators of ranks that are threads: one for each group of each axis that a collective uses.
class AxisCommunicators final : public RankCommunicators {
 public:
  explicit AxisCommunicators(const Program& program);

  void Run(RankAxis axis, int rank, const CommCall& call, ThreadPool* pool) override;
  double TakeWaitedSeconds(int rank) override;
  void Abort(const std::exception_ptr& cause) noexcept override;

 private:
  const RankAxes axes_;
  std::array<std::vector<std::unique_ptr<Communicator>>, kAxes> groups_;
};

// ---- elementwise sums over ranks ----

// Element targets[t][target_begin + i] = sum over r in order of sources[r][source_begin + i], for i
// in [0, count), for each t. Sums are fp32 (fp64 for kF64), rounded once. A target may be the same
// range as a source. REQUIRES: dtype is a floating-point type.
void SumElements(Dtype dtype, std::span<const std::byte* const> sources, uint64_t source_begin,
                 std::span<std::byte* const> targets, uint64_t target_begin, uint64_t count);

// The same one term at a time, for terms that are not in one place.

// Bytes of an element of an unrounded sum.
uint64_t SumBytes(Dtype dtype);
// Adds `count` elements to `sum`; with `first` copies them to it.
void AddToSum(Dtype dtype, const std::byte* source, uint64_t count, bool first, std::byte* sum);
void RoundSum(Dtype dtype, const std::byte* sum, uint64_t count, std::byte* target);

// The elements [begin, end) that the rank at `place` of `ranks` sums in an all-reduce of
// `elements`.
std::pair<uint64_t, uint64_t> AllReduceSlice(uint64_t elements, uint64_t place, uint64_t ranks);

}  // namespace zeroplan
