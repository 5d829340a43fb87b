// A search's knowledge of its candidates: the bound of each group, and the figures of each lowered
// program. Kept for all questions about one space.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/search/lowered_programs.h"
#include "planner/search/search.h"

namespace zeroplan {

// Larger is better; primary counts first.
struct Score {
  double primary = -std::numeric_limits<double>::infinity();
  double secondary = -std::numeric_limits<double>::infinity();

  bool operator<(const Score& other) const {
    return primary != other.primary ? primary < other.primary : secondary < other.secondary;
  }
};
Score ScoreOf(Objective objective, const Found& found);
// The gap by which `bound` is better than `score`, as a share of the first component that differs.
double GapOf(const Score& score, const Score& bound);

// A candidate that may answer a question, and its bound. In a list of mixes it represents members
// `member` to `end` - 1; the bounds are those of the first.
struct Item {
  Score bound;
  uint64_t gpu_bytes = 0;  // lower bound
  uint32_t group = 0;
  BatchPair batch{};
  uint16_t mix = 0;  // the space's list of mixes, from 1 on; 0: the group's own recompute
  uint16_t member = 0, end = 1;

  // Among equals the group that comes first is better, because it is simpler.
  bool operator<(const Item& other) const {
    if (bound < other.bound || other.bound < bound) return bound < other.bound;
    return group != other.group ? group > other.group : mix > other.mix;
  }
};

// Counts of the work for an answer.
struct JudgeStats {
  uint64_t candidates = 0, cut_by_memory = 0, cut_by_score = 0, judged = 0;
  uint64_t lowered = 0, instructions = 0;
};

class Judge {
 public:
  // `programs`: made for the inputs' model, base and lower options; null: new ones.
  explicit Judge(SearchInputs inputs, std::shared_ptr<LoweredPrograms> programs = nullptr);

  // See Bounds::TakeCompute.
  void TakeCompute(const Judge& other) { bounds_.TakeCompute(other.bounds_); }

  // The candidate of a group, with batch 1 x 1.
  const Candidate& CandidateOfGroup(uint32_t group) const { return groups_[group].candidate; }
  // The candidate of an item, with its recompute.
  Candidate CandidateOf(const Item& item) const {
    return CandidateOf(item.group, item.mix, item.member);
  }
  uint32_t group_count() const { return static_cast<uint32_t>(groups_.size()); }

  // The candidates that may answer; without `cut` also those whose memory bound does not fit.
  std::vector<Item> Open(const Question& question, bool cut);
  // The same for mixes whose bound is no worse than `floor`: one item of each list, from the first
  // member that may fit; if memory alone counts, the last member that hosts may hold; `each`: one
  // item a member.
  std::vector<Item> OpenMixes(const Question& question, bool cut, const Score& floor, bool each);
  // The choice as its program has it; nothing if it does not fit. Among several members the first
  // one that fits, found by bisection: each member's program needs no more GPU memory than the one
  // before.
  std::optional<Found> Try(const Question& question, const Item& item);
  // The members of an item after the one found; nothing: there are none.
  std::optional<Item> Behind(const Question& question, const Item& item, const Found& found);
  // Whether the item's program was judged, for any question.
  bool Knows(const Item& item) const;
  // See ChoiceSearch::MostOfKernels.
  double MostOfKernels(const Candidate& candidate);
  // The cluster's GPU memory from which on an item that needs `gpu_bytes` fits.
  uint64_t CapacityNeeded(const Item& item, uint64_t gpu_bytes) const;
  // The least GPU memory of an item: its bound, and the memory of programs with smaller
  // micro-batches.
  uint64_t LeastGpuBytes(const Item& item) const;
  // Whether a try is not worthwhile yet: its bounds on the memory of GPU and host fit, but all
  // programs of its kind exceeded theirs by so much that this one would not fit.
  bool UnlikelyToFit(const Question& question, const Item& item);
  // Whether its program is known to exceed GPU memory, gaps of placement apart.
  bool TooLargeForGpu(const Question& question, const Item& item) const;
  // Whether a smaller micro-batch of the group, with as many micro-steps, did not fit.
  bool TooLarge(const Question& question, const Item& item) const;
  // The best choice judged so far, for any question.
  std::optional<Found> BestKnown(const Question& question) const;
  // Each judged program, at the best of the question's batches that it serves.
  std::vector<JudgedChoice> AllJudged(const Question& question) const;
  // The candidate closest to fitting.
  std::optional<Candidate> Closest(const Question& question);
  // Candidates whose memory bound does not fit, at most `limit` of them spread over the space.
  std::vector<CutCandidate> CutByMemory(size_t limit);
  // BatchPairs for the question.
  std::vector<BatchPair> PairsOf(const Question& question, int data_ranks) const;

  const std::shared_ptr<LoweredPrograms>& programs() const { return programs_; }
  ChoiceEstimate Estimate(const Candidate& candidate) const;
  const SearchCluster& ClusterOf(const Candidate& candidate) const;
  const SearchInputs& inputs() const { return in_; }

  JudgeStats stats;

 private:
  // A program's figures for a choice, for any accumulation of its kind.
  struct Judged {
    MemoryTotals totals;
    MemoryTotals
        live;  // without placement's gaps on the GPU; as the micro-batch grows, only logits shrink
    StepParts parts;
  };
  struct Group {
    Candidate candidate;
    size_t cluster = 0;  // index into in_.clusters
    GroupBound bound;
    ExtraMemory extra;
  };

  void CheckBatches() const;
  void AddGroup(const Candidate& candidate);
  const SearchCluster& ClusterOf(const Group& group) const { return in_.clusters[group.cluster]; }
  Candidate CandidateOf(uint32_t group, uint16_t mix, uint16_t member) const;
  uint16_t MembersOf(uint16_t mix) const;
  const ComputeBound& ComputeOf(const Group& group, int64_t micro_batch,
                                const RecomputeConfig& recompute);
  const ComputeBound& ComputeOf(const Group& group, int64_t micro_batch) {
    return ComputeOf(group, micro_batch, group.candidate.recompute);
  }
  const ComputeBound& ComputeOfMember(const Group& group, uint16_t mix, uint16_t member,
                                      int64_t micro_batch);
  // The first member whose bound fits, or the number of members.
  uint16_t FirstThatFits(const Group& group, uint16_t mix, int64_t micro_batch,
                         const Capacity& capacity);
  std::optional<Found> TryMembers(const Question& question, const Item& item);
  // The first in [first, end) that is likely to fit, or the last one.
  uint16_t LikelyMember(const Question& question, const Item& item, uint16_t first, uint16_t end);
  Capacity CapacityFor(const Candidate& candidate, const Question& question) const;
  // The memory needed, including the memory to leave free.
  static MemoryTotals Needs(const Group& group, int64_t micro_batch, MemoryTotals totals);
  Score BoundOf(const Question& question, const Group& group, const BatchPair& batch,
                const ComputeBound& compute, const MemoryBound& memory) const;
  // Whether matmuls are in FP8 for some micro-batches only, so that a larger one may need less
  // memory.
  bool ProductsHangOnBatch(const Candidate& candidate) const;
  double Tokens(const Candidate& candidate, const BatchPair& batch) const;
  int64_t LocalSeq(const Candidate& candidate) const;                        // see BatchSpec
  uint64_t LogitsOf(const Candidate& candidate, int64_t micro_batch) const;  // see LogitsChunkBytes
  using PairsByRanks = std::map<int, std::vector<BatchPair>>;
  PairsByRanks Pairs(const Question& question) const;  // by data ranks of the groups
  // Key of a judged program: group, list of mixes, micro-batch, accumulation, member.
  using JudgedKey = std::tuple<uint32_t, uint16_t, int64_t, int64_t, uint16_t>;
  static JudgedKey KeyOf(const Item& item, uint16_t member);
  const Judged& JudgedOf(const Item& item, uint16_t member);
  // Whether `says` holds for the memory that some judged program of the group implies as the least
  // of the item. Considers programs with as many micro-steps and no larger micro-batch (the second
  // argument of `says`); for mixes only those of `member`.
  bool AnySmaller(const Item& item, uint16_t member,
                  const std::function<bool(const MemoryTotals&, int64_t)>& says) const;
  // As a Found, whether it fits or not.
  Found AsFound(const JudgedKey& key, const BatchPair& batch, const Judged& judged) const;
  bool FitsAs(const Question& question, uint32_t group, const BatchPair& batch,
              const Judged& judged) const;
  std::optional<Found> FoundOf(const Question& question, const JudgedKey& key,
                               const BatchPair& batch, const Judged& judged) const;

  const SearchInputs in_;
  const std::shared_ptr<LoweredPrograms> programs_;
  Bounds bounds_;
  std::vector<Group> groups_;
  std::map<JudgedKey, Judged> judged_;
  // The least excess of a program over its bound, by sequence ranks, stage, offloads and recompute.
  using MemoryKind = std::tuple<int, int, OffloadDevice, OffloadDevice, RecomputeConfig>;
  static MemoryKind MemoryKindOf(const Candidate& candidate);
  std::map<MemoryKind, uint64_t> beyond_bound_;
  // The same for a host: by stage, offloads, the size of sub-groups, and whether gradients are
  // summed over micro-steps. Bounds leave staging memory out.
  using HostKind = std::tuple<int, OffloadDevice, OffloadDevice, uint64_t, bool>;
  static HostKind HostKindOf(const Candidate& candidate);
  std::map<HostKind, uint64_t> beyond_host_bound_;
  // The bounds of each member of a list of mixes, by micro-batch, matmul dtypes, sequence ranks and
  // cluster.
  using MixKey = std::tuple<uint16_t, int64_t, ProductsKind, int, size_t>;
  std::map<MixKey, std::vector<const ComputeBound*>> mix_computes_;
};

// The result of searching a judge's candidates for one answer (hunt.cc).
struct Hunted {
  Answer answer;
  uint64_t left = 0;  // candidates not examined when the budget was spent
};
Hunted RunHunt(Judge& judge, const Question& question);
// The same by lowering every candidate.
Hunted RunHuntByBruteForce(Judge& judge, const Question& question);

}  // namespace zeroplan
