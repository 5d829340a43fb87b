#include "core/program/collectives.h"

#include <doctest/doctest.h>

#include <vector>

#include "core/lowering/lower.h"
#include "core/program/axes.h"
#include "tests/core/lowering/matrix.h"

namespace zeroplan {

namespace {

TEST_CASE("a program needs a communicator for each axis and stream that has collectives") {
  for (const testing::Cell& cell : testing::AllCells({1, 3}, {Dtype::kBF16})) {
    CAPTURE(cell.name);
    const Program program = Lower(testing::TinyModel(), cell.setup);
    const bool alone = cell.setup.batch.world_size == 1;
    std::vector<CommunicatorKey> wanted;
    // Stage 0 keeps everything whole, so nothing is ever gathered.
    if (!alone && cell.setup.zero.stage > 0) wanted.push_back({RankAxis::kAll, Stream::kGather});
    if (!alone) wanted.push_back({RankAxis::kAll, Stream::kReduce});
    CHECK(CommunicatorsOf(program) == wanted);
  }
}

TEST_CASE("bytes on a ring, 4 ranks") {
  CHECK(RingSentBytes(CollectiveKind::kAllGather, uint64_t{400}, 4) == 300);
  CHECK(RingSentBytes(CollectiveKind::kReduceScatter, uint64_t{400}, 4) == 300);
  CHECK(RingSentBytes(CollectiveKind::kReduceToOwners, uint64_t{400}, 4) == 300);
  CHECK(RingSentBytes(CollectiveKind::kBroadcast, uint64_t{400}, 4) == 300);
  CHECK(RingSentBytes(CollectiveKind::kAllToAll, uint64_t{400}, 4) == 300);
  CHECK(RingSentBytes(CollectiveKind::kAllReduce, uint64_t{400}, 4) == 600);
  CHECK(RingSentBytes(CollectiveKind::kAllReduce, uint64_t{400}, 1) == 0);
}

TEST_CASE("ring bytes: what one rank sends") {
  CHECK(RingSentBytes(CollectiveKind::kAllReduce, uint64_t{1200}, 4) == 1800);
  CHECK(RingSentBytes(CollectiveKind::kReduceScatter, uint64_t{1200}, 4) == 900);
  CHECK(RingSentBytes(CollectiveKind::kAllGather, uint64_t{1200}, 3) == 800);
  CHECK(RingSentBytes(CollectiveKind::kReduceToOwners, uint64_t{1200}, 3) == 800);
  CHECK(RingSentBytes(CollectiveKind::kBroadcast, uint64_t{1200}, 2) == 600);
  CHECK(RingSentBytes(CollectiveKind::kAllReduce, uint64_t{1200}, 1) == 0);
}

TEST_CASE("ring bytes: estimates in fractions of bytes agree with whole ones") {
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather}) {
    for (const int ranks : {1, 2, 3, 8}) {
      const uint64_t full = 1200 * static_cast<uint64_t>(ranks);
      CHECK(RingSentBytes(kind, static_cast<double>(full), ranks) ==
            doctest::Approx(static_cast<double>(RingSentBytes(kind, full, ranks))));
    }
  }
}

TEST_CASE("ring bytes: what a segment is over") {
  Segment segment;
  segment.src.bytes = 100;
  segment.dst.bytes = 400;
  CHECK(SegmentFullBytes(CollectiveKind::kAllGather, segment) == 400);
  // The target is the whole shard, but only the range is sent.
  CHECK(SegmentFullBytes(CollectiveKind::kReduceToOwners, segment) == 100);
}

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
  const RankAxes shared(2, 8, 4);
  CHECK(shared.Size(RankAxis::kSequence) == 4);
  CHECK(shared.Groups(RankAxis::kSequence) == 2);
  CHECK(shared.Group(RankAxis::kSequence, 6) == 1);
  CHECK(shared.Place(RankAxis::kSequence, 6) == 2);
  CHECK(shared.Named(RankAxis::kSequence) == RankAxis::kSequence);
  CHECK(RankAxes(4, 4, 4).Named(RankAxis::kSequence) == RankAxis::kAll);
  CHECK(RankAxes(4, 4).Named(RankAxis::kShard) == RankAxis::kAll);
  CHECK(RankAxes(4, 4).Named(RankAxis::kReplica) == RankAxis::kReplica);
  CHECK(RankAxes(1, 4).Named(RankAxis::kReplica) == RankAxis::kAll);
  CHECK(RankAxes(2, 4).Named(RankAxis::kShard) == RankAxis::kShard);
}

}  // namespace

}  // namespace zeroplan
