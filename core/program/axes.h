// The ranks of a run as a grid whose dimensions have names. A rank has a coordinate along each;
// where its shards begin follows from one of them, and a collective says which ranks it runs over.
// Pure ZeRO is one shard axis of all ranks; stage 0, which shards nothing, one replica axis of all.
#pragma once

#include <cstdint>
#include <string_view>

namespace zeroplan {

// The ranks that differ along one dimension only form a group.
enum class RankAxis : uint8_t {
  kAll,      // every rank: one group
  kShard,    // the ranks that hold a unit's shards between them
  kReplica,  // the ranks that hold the same shard
};
inline constexpr int kAxes = 3;
std::string_view RankAxisName(RankAxis axis);  // "all", "shard", "replica"

struct Coordinates {
  int shard = 0, replica = 0;
};

class RankAxes {
 public:
  // Ranks of one shard group follow one another. REQUIRES: `shards` divides `ranks`.
  RankAxes(int shards, int ranks) : shards_(shards), ranks_(ranks) {}

  int ranks() const { return ranks_; }
  Coordinates Of(int rank) const { return {rank % shards_, rank / shards_}; }

  // Ranks of one group, and how many groups there are.
  int Size(RankAxis axis) const {
    return axis == RankAxis::kAll ? ranks_ : axis == RankAxis::kShard ? shards_ : ranks_ / shards_;
  }
  int Groups(RankAxis axis) const { return ranks_ / Size(axis); }
  // The group that a rank is in, and its place there.
  int Group(RankAxis axis, int rank) const {
    return axis == RankAxis::kAll     ? 0
           : axis == RankAxis::kShard ? Of(rank).replica
                                      : Of(rank).shard;
  }
  int Place(RankAxis axis, int rank) const {
    return axis == RankAxis::kAll     ? rank
           : axis == RankAxis::kShard ? Of(rank).shard
                                      : Of(rank).replica;
  }
  // The name that programs give an axis: one that has every rank is kAll.
  RankAxis Named(RankAxis axis) const { return Size(axis) == ranks_ ? RankAxis::kAll : axis; }

 private:
  int shards_, ranks_;
};

}  // namespace zeroplan
