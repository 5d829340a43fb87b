// The answer as a function of GPU memory, of the batch, and of the bandwidth between GPUs, found by
// searches of the whole space. All figures are rounded to forms that a user can type.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hwprofiles/profile.h"
#include "planner/search/search.h"

namespace zeroplan {

// The property that distinguishes answers at other bandwidths: the ranks of a shard group (0: all
// are one), if several are searched, because then stages and the sharing across groups make little
// difference; else the stage.
struct Sharding {
  std::optional<int> stage;
  int group = 0;
  bool operator==(const Sharding&) const = default;
};
Sharding ShardingOf(const Candidate& candidate, const SearchSpace& space);

// Whether two choices are of one kind: the same stage and shard groups, places of states and
// parameters, and recompute. Choices of one kind differ only in batch, buckets, shares or the
// recomputed segments' length.
bool SameKind(const Candidate& a, const Candidate& b);

// A range in which the answer is of one kind: from `from` to `to`, both included. If both are
// equal, only that value was examined.
struct AnswerRange {
  double from = 0, to = 0;  // bytes of a GPU, sequences, or bytes a second
  // The answer at the end nearer to the present value, or at that value if the range contains it;
  // in a range with frequent changes, then one answer of each other kind. Empty: nothing fits.
  std::vector<Found> found;
  double gap = 0;  // as in Answer: at that end; for bandwidth the largest of the range
  // By memory: the kind is proven, but the search for the choice at that end is not within
  // kMostGap.
  bool kind_alone = false;
  // By bandwidth: next to that end lies a rate whose answer is not known.
  bool open_below = false, open_above = false;

  bool point() const { return from == to; }
};

struct Answers {
  std::vector<AnswerRange> ranges;  // rising
  bool gave_up = false;  // some of it needs programs that are too large to lower in such numbers
  double least_gap = 0;  // by bandwidth, if no answer is known: the least gap of a search
};

// An answer whose gap is larger than this is not known: no range rests on it.
inline constexpr double kMostGap = 0.03;

// The largest memory examined, as a multiple of the present one.
inline constexpr uint64_t kMostMemory = 16;

// Answers by GPU memory, up to kMostMemory times the present one and down to the memory in which
// nothing fits. Ranges narrower than 2 % are joined to one in which the answer changes.
Answers AnswersByMemory(ChoiceSearch& searcher, const Found& now);

// Whether the request allows `sequences` a step in whole micro-steps.
bool CanHave(const SearchInputs& inputs, int64_t sequences, int gpus);

// Answers for the present batch doubled up to six times, or halved, as far as all GPUs have a
// sequence or share one.
Answers AnswersByBatch(ChoiceSearch& searcher, const Found& now);

// Answers by the rate that --network or --intra-node-bandwidth sets: 1/64 to 16 times the
// profile's, as far as such rates are physical. Ranges are of one Sharding. They begin and end at
// searched rates, and the rates between two searches of one kind count as that kind. What is not
// proven there, at an end or by more than kMostGap anywhere, is searched as a plan for that rate
// would be. Other runtimes, whose searches are slow, are searched at single rates. `gap`: that of
// `now`, the answer at the present rate if the user set that rate.
Answers AnswersByBandwidth(ChoiceSearch& searcher, const Found& now, const OtherLink& link,
                           double gap = 0);

// Rounds to four digits, "69.12 GB": up or down to the next such size.
enum class Rounding : uint8_t { kUp, kDown };
uint64_t TypedBytes(uint64_t bytes, Rounding rounding);
std::string FormatTypedBytes(uint64_t bytes);

// The link that decides how fast GPUs communicate: the network if there are several nodes.
struct ScarcestLink {
  bool network = false;         // else between the GPUs of one node
  double bytes_per_second = 0;  // a node's, or a GPU's; each direction

  // "between nodes (each node, each direction)".
  std::string_view Name() const;
};
ScarcestLink ScarcestLinkOf(const Cluster& cluster, const HardwareProfile& hardware);

// Describes both links of a cluster's GPUs; "" for one GPU.
std::string LinksText(const Cluster& cluster, const HardwareProfile& hardware);

// Bits for networks, bytes for links: "25 Gb/s", "300 GB/s".
std::string FormatBandwidth(double bytes_per_second, bool bits);

}  // namespace zeroplan
