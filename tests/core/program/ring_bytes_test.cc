#include "core/program/ring_bytes.h"

#include <doctest/doctest.h>

namespace zeroplan {
namespace {

TEST_CASE("bytes on a ring, 4 ranks") {
  CHECK(RingSentBytes(CollectiveKind::kAllGather, uint64_t{400}, 4) == 300);
  CHECK(RingSentBytes(CollectiveKind::kReduceScatter, uint64_t{400}, 4) == 300);
  CHECK(RingSentBytes(CollectiveKind::kReduceToOwners, uint64_t{400}, 4) == 300);
  CHECK(RingSentBytes(CollectiveKind::kBroadcast, uint64_t{400}, 4) == 300);
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

}  // namespace
}  // namespace zeroplan
