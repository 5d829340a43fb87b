#include "core/program/axes.h"

#include <doctest/doctest.h>

namespace zeroplan {
namespace {

TEST_CASE("axes: coordinates, groups and places of 2 x 3 ranks") {
  const RankAxes axes(2, 6);  // ranks 0 1 | 2 3 | 4 5
  CHECK(axes.Size(RankAxis::kAll) == 6);
  CHECK(axes.Size(RankAxis::kShard) == 2);
  CHECK(axes.Size(RankAxis::kReplica) == 3);
  CHECK(axes.Groups(RankAxis::kAll) == 1);
  CHECK(axes.Groups(RankAxis::kShard) == 3);
  CHECK(axes.Groups(RankAxis::kReplica) == 2);
  CHECK(axes.Of(3).shard == 1);
  CHECK(axes.Of(3).replica == 1);
  CHECK(axes.Group(RankAxis::kShard, 3) == 1);
  CHECK(axes.Place(RankAxis::kShard, 3) == 1);
  CHECK(axes.Group(RankAxis::kReplica, 4) == 0);
  CHECK(axes.Place(RankAxis::kReplica, 4) == 2);
  CHECK(axes.Place(RankAxis::kAll, 4) == 4);
}

TEST_CASE("axes: one that has every rank is called so") {
  CHECK(RankAxes(4, 4).Named(RankAxis::kShard) == RankAxis::kAll);
  CHECK(RankAxes(4, 4).Named(RankAxis::kReplica) == RankAxis::kReplica);
  CHECK(RankAxes(1, 4).Named(RankAxis::kReplica) == RankAxis::kAll);
  CHECK(RankAxes(2, 4).Named(RankAxis::kShard) == RankAxis::kShard);
}

}  // namespace
}  // namespace zeroplan
