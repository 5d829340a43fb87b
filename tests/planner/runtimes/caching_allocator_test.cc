#include <doctest/doctest.h>

#include "planner/runtimes/torch_memory.h"

namespace zeroplan {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST_CASE("CachingAllocator: segments by size") {
  CachingAllocator allocator;
  allocator.Allocate(1);
  CHECK(allocator.allocated() == 512);
  CHECK(allocator.reserved() == 2 * kMiB);
  allocator.Allocate(kMiB);  // from the same segment
  CHECK(allocator.reserved() == 2 * kMiB);
  allocator.Allocate(kMiB + 1);
  CHECK(allocator.reserved() == 22 * kMiB);
  allocator.Allocate(10 * kMiB - 512);  // fits what is left of those 20 MiB
  CHECK(allocator.reserved() == 22 * kMiB);
  allocator.Allocate(11 * kMiB);
  CHECK(allocator.reserved() == 34 * kMiB);
}

TEST_CASE("CachingAllocator: what remains of a large block up to 1 MiB is not split off") {
  CachingAllocator allocator;
  const auto whole = allocator.Allocate(15 * kMiB);  // a segment of 16
  CHECK(allocator.BlockBytes(whole) == 16 * kMiB);
  CHECK(allocator.allocated() == 16 * kMiB);
  const auto part = allocator.Allocate(15 * kMiB - 512);  // more than 1 MiB remains
  CHECK(allocator.BlockBytes(part) == 15 * kMiB - 512);
}

TEST_CASE("CachingAllocator: the best fit, by stream, and neighbours merge") {
  CachingAllocator allocator;
  const auto large = allocator.Allocate(40 * kMiB);
  const auto small = allocator.Allocate(20 * kMiB);
  allocator.Free(large);
  allocator.Free(small);
  CHECK(allocator.allocated() == 0);
  const auto fits = allocator.Allocate(18 * kMiB);  // the one of 20
  allocator.Allocate(40 * kMiB);
  CHECK(allocator.reserved() == 60 * kMiB);
  allocator.Allocate(2 * kMiB, /*stream=*/1);  // nothing of another stream's
  CHECK(allocator.reserved() == 80 * kMiB);
  allocator.Free(fits);
  const auto merged = allocator.Allocate(20 * kMiB);  // whole again
  CHECK(allocator.reserved() == 80 * kMiB);
  CHECK(allocator.BlockBytes(merged) == 20 * kMiB);
  CHECK(allocator.peak_allocated() == 80 * kMiB - 18 * kMiB);
}

TEST_CASE("CachingAllocator: a limit empties the cache, then is exceeded") {
  CachingAllocator allocator(50 * kMiB);
  const auto first = allocator.Allocate(30 * kMiB);
  allocator.Free(first);
  allocator.Allocate(40 * kMiB);
  CHECK(allocator.reserved() == 40 * kMiB);
  CHECK(allocator.peak_reserved() == 40 * kMiB);
  CHECK_FALSE(allocator.failed());
  allocator.Allocate(12 * kMiB);
  CHECK(allocator.failed());
  CHECK(allocator.reserved() == 52 * kMiB);
}

TEST_CASE("CachingAllocator: an emptied cache keeps segments that hold a tensor") {
  CachingAllocator allocator;
  const auto left = allocator.Allocate(4 * kMiB);
  const auto right = allocator.Allocate(4 * kMiB);  // of the same 20
  const auto other = allocator.Allocate(30 * kMiB);
  allocator.Free(left);
  allocator.Free(other);
  allocator.EmptyCache();
  CHECK(allocator.reserved() == 20 * kMiB);
  allocator.Free(right);
  allocator.EmptyCache();
  CHECK(allocator.reserved() == 0);
  allocator.Allocate(3 * kMiB);
  CHECK(allocator.reserved() == 20 * kMiB);
}

TEST_CASE("PinnedBlockBytes") {
  CHECK(PinnedBlockBytes(0) == 0);
  CHECK(PinnedBlockBytes(4096) == 4096);
  CHECK(PinnedBlockBytes(4097) == 8192);
  CHECK(PinnedBlockBytes(41'116'958'720) == uint64_t{64} << 30);  // 10.28e9 fp32 masters
}

TEST_CASE("CachingAllocator: expandable segments grow by pages, joined with what is free") {
  CachingAllocator allocator(std::nullopt, /*expandable=*/true);
  allocator.Allocate(512);
  CHECK(allocator.reserved() == 2 * kMiB);
  const auto first = allocator.Allocate(15 * kMiB);
  CHECK(allocator.reserved() == 22 * kMiB);
  CHECK(allocator.BlockBytes(first) == 15 * kMiB);    // split though 5 MiB are left
  const auto second = allocator.Allocate(30 * kMiB);  // 5 MiB, and two pages
  CHECK(allocator.reserved() == 62 * kMiB);
  allocator.Free(second);
  allocator.Allocate(44 * kMiB);  // all that was free, and no page more
  CHECK(allocator.reserved() == 62 * kMiB);
  // Without them each has a segment of its own.
  CachingAllocator plain;
  plain.Free(plain.Allocate(30 * kMiB));
  plain.Allocate(44 * kMiB);
  CHECK(plain.reserved() == 74 * kMiB);
}

TEST_CASE("CachingAllocator: expandable segments give free pages back between tensors") {
  CachingAllocator allocator(120 * kMiB, /*expandable=*/true);
  const auto first = allocator.Allocate(50 * kMiB);
  const auto second = allocator.Allocate(20 * kMiB);
  allocator.Free(first);
  // Of 0 to 50 MiB the pages up to 40; they are mapped anew behind the second one.
  const auto third = allocator.Allocate(80 * kMiB);
  CHECK_FALSE(allocator.failed());
  CHECK(allocator.reserved() == 110 * kMiB + 10 * kMiB);
  CHECK(allocator.given_back() == 1);
  allocator.Free(third);
  allocator.Free(second);
  CHECK(allocator.allocated() == 0);
  allocator.EmptyCache();
  CHECK(allocator.reserved() <= 20 * kMiB);  // the page that 40 to 50 MiB share
  allocator.Allocate(150 * kMiB);
  CHECK(allocator.failed());
}

}  // namespace
}  // namespace zeroplan
