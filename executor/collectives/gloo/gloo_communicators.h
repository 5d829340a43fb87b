// Collectives of the CPU backend between ranks that are processes, on one host or several.
//
// Every rank gets the same bits as ranks in one process (in_process.h): sums add up ranks in rank
// order, with the same functions, rounded once. A rank sends:
//
//   gathers: its part around the ring of the group's ranks, as in the accounting of traffic.
//
//   reductions: directly to the owner of each part, who adds; or along the chain of ranks, each of
//   which adds its own to the sum so far, and from the last rank, who rounds, to the owner: the way
//   that loads the network between hosts less (ReducesAlongChain).
//
//   all-to-all: directly.
//
// The chain crosses each host's border once, as a ring does, while the direct way sends each pair's
// data across it. A reduction's messages are pieces, several under way. Small data goes directly,
// because a hop takes longer than its bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "executor/collectives/gloo/gloo_links.h"
#include "executor/collectives/in_process.h"

namespace zeroplan {

// Whether a reduction over ranks on `hosts`, by place, sends fewer bytes from the busiest host to
// other hosts if it uses the chain. `sum_bytes`: bytes of an element of an unrounded sum, whose
// rounded element has `element_bytes`.
bool ReducesAlongChain(std::span<const std::string> hosts, uint64_t element_bytes,
                       uint64_t sum_bytes);

class GlooCommunicators final : public RankCommunicators {
 public:
  // Same arguments as GlooLinks. One set of links serves all axes and streams: a rank runs one
  // instruction at a time, in an order that is the same on all ranks.
  GlooCommunicators(const RankAxes& axes, ProcessGroup& group, double limit_seconds = 300);

  // From one thread. `rank` is this process's. Throws the errors of GlooLinks::Await.
  void Run(RankAxis axis, int rank, const CommCall& call, ThreadPool* pool) override;
  // Seconds spent waiting for messages, including their transfer.
  double TakeWaitedSeconds(int rank) override;
  // Also tells the other processes.
  void Abort(const std::exception_ptr& cause) noexcept override;

 private:
  using Message = GlooLinks::Message;

  // The ranks of this rank's group on an axis, itself included.
  struct Members {
    std::vector<int> ranks;          // by place
    std::vector<std::string> hosts;  // by place, too
    size_t place = 0;
    uint64_t calls = 0;  // calls so far, the same on all of them
  };
  // Elements that are summed together: `count` from `src`, for the rank at `owner`, which stores
  // the result at `dst` (null on the others).
  struct Piece {
    const std::byte* src = nullptr;
    std::byte* dst = nullptr;
    uint64_t count = 0;
    size_t owner = 0;
  };
  // A part of a gather in this rank's memory; its place in the list is that of the rank that owns
  // it.
  struct GatherPart {
    std::byte* data = nullptr;
    uint64_t bytes = 0;
  };

  const Members& members() const { return *meets_; }
  size_t size() const { return meets_->ranks.size(); }
  size_t place() const { return meets_->place; }
  Message Send(size_t to, uint64_t index, const std::byte* data, uint64_t bytes);
  Message Receive(size_t from, uint64_t index, std::byte* data, uint64_t bytes);
  void Await(Message& message);
  uint64_t Number(uint64_t index) const;

  std::vector<Piece> PiecesOf(const CommCall& call) const;
  void Reduce(const CommCall& call, ThreadPool* pool);
  void ReduceDirectly(Dtype dtype, std::span<const Piece> pieces, ThreadPool* pool);
  void ReduceAlongChain(Dtype dtype, std::span<const Piece> pieces, ThreadPool* pool);
  void GatherReduced(const CommCall& call);
  void GatherParts(const CommCall& call, ThreadPool* pool);
  // `lists`: the parts of each segment, by place. This rank's own part is already there.
  void Gather(std::span<const std::vector<GatherPart>> lists);
  void PassAround(std::span<const std::vector<GatherPart>> lists);
  void AllToAll(const CommCall& call);

  const RankAxes axes_;
  ProcessGroup& group_;
  GlooLinks links_;
  std::array<Members, kAxes> members_;
  // State of the call under way.
  RankAxis axis_ = RankAxis::kAll;
  Members* meets_ = nullptr;
  uint64_t index_ = 0;  // number of messages so far
  std::vector<std::byte> staging_;
  double waited_seconds_ = 0;
};

}  // namespace zeroplan
