// The answer as a function of GPU memory, of the batch, and of the bandwidth between GPUs, as far
// as searches of the whole space say it. All figures are as one would type them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/profile.h"
#include "planner/search/search.h"

namespace zeroplan {

// What tells answers at other bandwidths apart: the ranks of a shard group (0: all are one) where
// several are searched, beside which stages and what groups share make little difference; else the
// stage.
struct Sharding {
  std::optional<int> stage;
  int group = 0;
  bool operator==(const Sharding&) const = default;
};
Sharding ShardingOf(const Candidate& candidate, const SearchSpace& space);

// What an answer is called: stage and shard groups, where states and parameters live, which
// recompute. Two choices of one kind differ in batch, buckets, shares or the recomputed segments'
// length only.
bool SameKind(const Candidate& a, const Candidate& b);

// Where the answer is of one kind: everywhere from `from` to `to`, both included. Where they are
// the same that one value was looked at.
struct AnswerRange {
  double from = 0, to = 0;  // bytes of a GPU, sequences, or bytes a second
  // The answer at the end that is nearer to the present value, or at that value where the range has
  // it; of a range in which it changes often, one of each other kind after it. Empty: nothing fits.
  std::vector<Found> found;
  double gap = 0;  // as Answer's, at that end

  bool point() const { return from == to; }
};

struct Answers {
  std::vector<AnswerRange> ranges;  // rising
  bool gave_up = false;             // some of it takes programs that are too large to lower so many
};

// Memory up to this many times the present one is looked at.
inline constexpr uint64_t kMostMemory = 16;

// By GPU memory, up to kMostMemory times the present one and down to where nothing fits. Ranges
// narrower than 2 % are joined to one in which the answer changes.
Answers AnswersByMemory(ChoiceSearch& searcher, const Found& now);

// Whether `sequences` a step are whole micro-steps of what is asked for.
bool CanHave(const SearchInputs& inputs, int64_t sequences, int gpus);

// With the present batch doubled up to six times, or halved, as far as all GPUs have a sequence
// or share one.
Answers AnswersByBatch(ChoiceSearch& searcher, const Found& now);

// By what --network or --intra-node-bandwidth sets: 1/64 to 16 times what the profile has, as far
// as such rates are physical. Ranges are of one Sharding. They begin and end
// where searches were made, and what lies between two such places of one kind is taken for that
// kind's; other runtimes, whose searches take long, are asked for single values.
// `gap`: of `now`, which is the answer at the present rate where that was typed.
Answers AnswersByBandwidth(ChoiceSearch& searcher, const Found& now, const OtherLink& link,
                           double gap = 0);

// "69.12 GB": four digits, the next such size that is no smaller, or no larger.
enum class Rounding : uint8_t { kUp, kDown };
uint64_t TypedBytes(uint64_t bytes, Rounding rounding);
std::string FormatTypedBytes(uint64_t bytes);

// The link that decides how fast GPUs communicate: the network where there are several nodes.
struct ScarcestLink {
  bool network = false;         // else between the GPUs of one node
  double bytes_per_second = 0;  // of a node, or of a GPU; each direction

  // "between nodes (each node, each direction)".
  std::string_view Name() const;
};
ScarcestLink ScarcestLinkOf(const Cluster& cluster, const HardwareProfile& hardware);

// Both links of a cluster's GPUs, for people; "" for one GPU.
std::string LinksText(const Cluster& cluster, const HardwareProfile& hardware);

// Bits for networks, bytes for links: "25 Gb/s", "300 GB/s".
std::string FormatBandwidth(double bytes_per_second, bool bits);

}  // namespace zeroplan
