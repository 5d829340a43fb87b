// A search's knowledge of its candidates: the bound of each group, and the figures of each program
// that was lowered. Kept over all questions that are put to one space.
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

// Larger is better, first by primary.
struct Score {
  double primary = -std::numeric_limits<double>::infinity();
  double secondary = -std::numeric_limits<double>::infinity();

  bool operator<(const Score& other) const {
    return primary != other.primary ? primary < other.primary : secondary < other.secondary;
  }
};
Score ScoreOf(Objective objective, const Found& found);
// The gap by which `bound` is better than `score`, as a share of what they differ in first.
double GapOf(const Score& score, const Score& bound);

// A candidate that may answer a question, and the best that it could be. Of a list of mixes those
// from `member` up to, but not with, `end`; bounds are the first one's.
struct Item {
  Score bound;
  uint64_t gpu_bytes = 0;  // at least
  uint32_t group = 0;
  BatchPair batch{};
  uint16_t mix = 0;  // list of the space, from 1 on; 0: the group's own recompute
  uint16_t member = 0, end = 1;

  // Among equals the group that comes first is better: it is the simpler one.
  bool operator<(const Item& other) const {
    if (bound < other.bound || other.bound < bound) return bound < other.bound;
    return group != other.group ? group > other.group : mix > other.mix;
  }
};

// What was looked at for an answer.
struct JudgeStats {
  uint64_t candidates = 0, cut_by_memory = 0, cut_by_score = 0, judged = 0;
  uint64_t lowered = 0, instructions = 0;
};

class Judge {
 public:
  // `programs`: of the inputs' model, base and lower options; null: new ones.
  explicit Judge(SearchInputs inputs, std::shared_ptr<LoweredPrograms> programs = nullptr);

  // Bounds::TakeCompute.
  void TakeCompute(const Judge& other) { bounds_.TakeCompute(other.bounds_); }

  // A group's place in the space; its batch is 1 x 1.
  const Candidate& CandidateOfGroup(uint32_t group) const { return groups_[group].candidate; }
  // The same of an item, with its recompute.
  Candidate CandidateOf(const Item& item) const {
    return CandidateOf(item.group, item.mix, item.member);
  }
  uint32_t group_count() const { return static_cast<uint32_t>(groups_.size()); }

  // The candidates that may answer; without `cut` those too whose memory bound does not fit.
  std::vector<Item> Open(const Question& question, bool cut);
  // The same of mixes whose bound is no worse than `floor`: of each list one item from the first
  // member on that may fit; where memory counts alone, its last one that hosts may hold; `each`:
  // an item a member.
  std::vector<Item> OpenMixes(const Question& question, bool cut, const Score& floor, bool each);
  // What its program says; none if it does not fit. Of several members the first one that fits,
  // found by halving: from one to the next a program takes no more of a GPU.
  std::optional<Found> Try(const Question& question, const Item& item);
  // The members of an item behind the one that was found; none: there are none.
  std::optional<Item> Behind(const Question& question, const Item& item, const Found& found);
  // Whether its program was judged, whatever for.
  bool Knows(const Item& item) const;
  // ChoiceSearch's.
  double MostOfKernels(const Candidate& candidate);
  // GPU memory, of the cluster, from which on an item fits that takes `gpu_bytes`.
  uint64_t CapacityNeeded(const Item& item, uint64_t gpu_bytes) const;
  // What an item takes of a GPU at least: its bound, and what programs with smaller micro-batches
  // took.
  uint64_t LeastGpuBytes(const Item& item) const;
  // Whether it is not worth a try yet: its bounds on the memory of GPU and host fit, but programs
  // of its kind have all taken more than theirs, by so much that this one would not fit.
  bool UnlikelyToFit(const Question& question, const Item& item);
  // Whether its program is known to take more GPU memory than there is, gaps of placement apart.
  bool TooLargeForGpu(const Question& question, const Item& item) const;
  // Whether a smaller micro-batch of the group did not fit already, with as many micro-steps.
  bool TooLarge(const Question& question, const Item& item) const;
  // The best of all that was judged before, whatever for.
  std::optional<Found> BestKnown(const Question& question) const;
  // Each program that was judged, at the best of the question's batches that it serves.
  std::vector<JudgedChoice> AllJudged(const Question& question) const;
  // The candidate that comes closest to fitting.
  std::optional<Candidate> Closest(const Question& question);
  // Candidates whose memory bound does not fit, at most `limit` of them spread over the space.
  std::vector<CutCandidate> CutByMemory(size_t limit);
  // BatchPairs, as the question wants them.
  std::vector<BatchPair> PairsOf(const Question& question, int data_ranks) const;

  const std::shared_ptr<LoweredPrograms>& programs() const { return programs_; }
  ChoiceEstimate Estimate(const Candidate& candidate) const;
  const SearchCluster& ClusterOf(const Candidate& candidate) const;
  const SearchInputs& inputs() const { return in_; }

  JudgeStats stats;

 private:
  // What a program says of a choice, for any accumulation of its kind.
  struct Judged {
    MemoryTotals totals;
    MemoryTotals
        live;  // without placement's gaps on the GPU; as the micro-batch grows, only logits shrink
    StepParts parts;
  };
  struct Group {
    Candidate candidate;
    size_t cluster = 0;  // of in_.clusters
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
  // The first member whose bound fits, or how many there are.
  uint16_t FirstThatFits(const Group& group, uint16_t mix, int64_t micro_batch,
                         const Capacity& capacity);
  std::optional<Found> TryMembers(const Question& question, const Item& item);
  // The first of [first, end) that is likely to fit, or the last one.
  uint16_t LikelyMember(const Question& question, const Item& item, uint16_t first, uint16_t end);
  Capacity CapacityFor(const Candidate& candidate, const Question& question) const;
  // The memory needed, with what is to be left free.
  static MemoryTotals Needs(const Group& group, int64_t micro_batch, MemoryTotals totals);
  Score BoundOf(const Question& question, const Group& group, const BatchPair& batch,
                const ComputeBound& compute, const MemoryBound& memory) const;
  // Whether some micro-batches have products of eight bits and others have not, so that a larger
  // one may take less memory.
  bool ProductsHangOnBatch(const Candidate& candidate) const;
  double Tokens(const Candidate& candidate, const BatchPair& batch) const;
  int64_t LocalSeq(const Candidate& candidate) const;                        // BatchSpec's
  uint64_t LogitsOf(const Candidate& candidate, int64_t micro_batch) const;  // LogitsChunkBytes
  using PairsByRanks = std::map<int, std::vector<BatchPair>>;
  PairsByRanks Pairs(const Question& question) const;  // by the groups' data ranks
  // What was judged: group, list of mixes, micro-batch, accumulation, member.
  using JudgedKey = std::tuple<uint32_t, uint16_t, int64_t, int64_t, uint16_t>;
  static JudgedKey KeyOf(const Item& item, uint16_t member);
  const Judged& JudgedOf(const Item& item, uint16_t member);
  // Whether `says` is true of what some judged program of the group, with as many micro-steps and
  // no larger micro-batch (its second argument), leaves an item to take at least. Of mixes those of
  // its member.
  bool AnySmaller(const Item& item, uint16_t member,
                  const std::function<bool(const MemoryTotals&, int64_t)>& says) const;
  // Whether it fits or not.
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
  // The least that a program took beyond its bound, by sequence ranks, stage, what is offloaded and
  // recompute.
  using MemoryKind = std::tuple<int, int, OffloadDevice, OffloadDevice, RecomputeConfig>;
  static MemoryKind MemoryKindOf(const Candidate& candidate);
  std::map<MemoryKind, uint64_t> beyond_bound_;
  // The same of a host: by stage, what is offloaded, the size of sub-groups, and whether gradients
  // are summed over micro-steps. Bounds do not know what is staged.
  using HostKind = std::tuple<int, OffloadDevice, OffloadDevice, uint64_t, bool>;
  static HostKind HostKindOf(const Candidate& candidate);
  std::map<HostKind, uint64_t> beyond_host_bound_;
  // What bounds say of each member of a list of mixes, by micro-batch, products, sequence ranks and
  // cluster.
  using MixKey = std::tuple<uint16_t, int64_t, ProductsKind, int, size_t>;
  std::map<MixKey, std::vector<const ComputeBound*>> mix_computes_;
};

// The search for one answer among a judge's candidates (hunt.cc).
struct Hunted {
  Answer answer;
  uint64_t left = 0;  // candidates, when the budget was spent
};
Hunted RunHunt(Judge& judge, const Question& question);
// By lowering every candidate.
Hunted RunHuntByBruteForce(Judge& judge, const Question& question);

}  // namespace zeroplan
