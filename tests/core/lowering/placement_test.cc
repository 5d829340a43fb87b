#include "core/lowering/placement.h"

#include <doctest/doctest.h>

namespace zeroplan {
namespace {

// A: all the time; B and C: one after the other; D: carried, from the end into the begin.
const std::vector<Lifetime> kLives = {
    {1000, 0, 8, 0}, {400, 1, 3, 0}, {300, 3, 5, 0}, {200, 6, 8, 2}};

TEST_CASE("Place: largest first, side by side what lives together, else one over the other") {
  const Places places = Place(kLives, 128);
  CHECK(places.offsets == std::vector<uint64_t>{0, 1024, 1024, 1536});
  CHECK(places.bytes == 1736);
  CHECK(places.live_peak_bytes == 1600);
}

TEST_CASE("PlacementCache gives what Place gives, by lifetimes and alignment") {
  PlacementCache cache;
  std::vector<Lifetime> longer = kLives, carried = kLives;
  longer[1].end = 4;    // now meets C
  carried[3].head = 1;  // no longer meets B
  for (int round = 0; round < 2; ++round) {
    for (const std::vector<Lifetime>& lives : {kLives, longer, carried}) {
      for (const uint64_t alignment : {128u, 4096u}) {
        const Places expected = Place(lives, alignment);
        const Places& places = cache.Of(lives, alignment);
        CHECK(places.offsets == expected.offsets);
        CHECK(places.bytes == expected.bytes);
        CHECK(places.live_peak_bytes == expected.live_peak_bytes);
      }
    }
  }
  CHECK(Place(longer, 128).offsets == std::vector<uint64_t>{0, 1024, 1536, 1536});
  CHECK(Place(carried, 128).offsets == std::vector<uint64_t>{0, 1024, 1024, 1024});
}

TEST_CASE("PlacementCache keeps what was asked for last, and a bounded amount") {
  PlacementCache cache;
  constexpr uint32_t kCount = 100'000;
  std::vector<Lifetime> many;  // all live together
  for (uint32_t i = 0; i < kCount; ++i) many.push_back({128, i, kCount + i, 0});
  for (uint64_t bytes : {128, 256, 384, 512}) {
    many.front().bytes = bytes;
    CHECK(cache.Of(many, 128).bytes == bytes + 128 * (kCount - 1));
    CHECK(cache.kept() <= PlacementCache::kMostKept);
    CHECK(cache.kept() >= many.size());
  }
}

}  // namespace
}  // namespace zeroplan
