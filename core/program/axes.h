// The ranks of a run as a grid with named dimensions. A rank has a coordinate along each; one of
// them determines where its shards begin, and a collective names the axis that it runs over. Pure
// ZeRO is one shard axis of all ranks; stage 0, which shards nothing, one replica axis of all. The
// sequence axis lies across these two axes: it groups ranks that share activations, not states.
#pragma once

#include <cstdint>
#include <string_view>

namespace zeroplan {

// The ranks that differ along one dimension only form a group.
enum class RankAxis : uint8_t {
  kAll,       // every rank: one group
  kShard,     // the ranks that hold a unit's shards between them
  kReplica,   // the ranks that hold the same shard
  kSequence,  // the ranks that share sequences (BatchSpec::sequence_ranks)
};
inline constexpr int kAxes = 4;
std::string_view RankAxisName(RankAxis axis);  // "all", "shard", "replica", "sequence"

struct Coordinates {
  int shard = 0, replica = 0;
};

class RankAxes {
 public:
  // Ranks of one shard group have consecutive numbers, and so do ranks that share sequences.
  // REQUIRES: `shards` and `sequence` divide `ranks`.
  RankAxes(int shards, int ranks, int sequence = 1)
      : shards_(shards), ranks_(ranks), sequence_(sequence) {}

  int ranks() const { return ranks_; }
  Coordinates Of(int rank) const { return {rank % shards_, rank / shards_}; }

  // The ranks of one group, and the number of groups.
  int Size(RankAxis axis) const {
    switch (axis) {
      case RankAxis::kAll:
        return ranks_;
      case RankAxis::kShard:
        return shards_;
      case RankAxis::kReplica:
        return ranks_ / shards_;
      case RankAxis::kSequence:
        return sequence_;
    }
    return 0;
  }
  int Groups(RankAxis axis) const { return ranks_ / Size(axis); }
  // The distance between consecutive ranks of a group.
  int Apart(RankAxis axis) const { return axis == RankAxis::kReplica ? shards_ : 1; }
  // The group of a rank, and its place in the group.
  int Group(RankAxis axis, int rank) const {
    return axis == RankAxis::kReplica ? Of(rank).shard : rank / Size(axis);
  }
  int Place(RankAxis axis, int rank) const {
    return axis == RankAxis::kReplica ? Of(rank).replica : rank % Size(axis);
  }
  // The name of an axis in programs: kAll if a group has every rank.
  RankAxis Named(RankAxis axis) const { return Size(axis) == ranks_ ? RankAxis::kAll : axis; }

 private:
  int shards_, ranks_, sequence_;
};

}  // namespace zeroplan
