// What stays free of a GPU and a host is free in every answer.
#include <doctest/doctest.h>

#include <algorithm>

#include "planner/estimate/choices.h"
#include "planner/search/search.h"
#include "tests/planner/search_fixture.h"

namespace zeroplan {
namespace {

constexpr uint64_t kGB = 1'000'000'000;

std::optional<Found> BestOf(uint64_t gpu_bytes, uint64_t gpu_reserve, uint64_t host_bytes,
                            uint64_t host_reserve) {
  SearchFixture fixture("gpt2-medium", 1);
  fixture.Capacity(gpu_bytes, host_bytes);
  Cluster& cluster = fixture.inputs.clusters[0].cluster;
  cluster.gpu_reserve_bytes = gpu_reserve;
  cluster.host_reserve_bytes = host_reserve;
  return Searcher(fixture.inputs).Best({}).found;
}

TEST_CASE("a reserve is memory that a search does not have") {
  const std::optional<Found> all = BestOf(12 * kGB, 0, 64 * kGB, 0);
  const std::optional<Found> less = BestOf(12 * kGB, 2 * kGB, 64 * kGB, 0);
  const std::optional<Found> smaller = BestOf(10 * kGB, 0, 64 * kGB, 0);
  REQUIRE(all);
  REQUIRE(less);
  REQUIRE(smaller);
  CHECK(all->gpu_bytes > 10 * kGB);
  CHECK(less->gpu_bytes <= 10 * kGB);
  CHECK(less->candidate == smaller->candidate);
  // 6 GB of states and gradients of 355M parameters, at least in part, lie on the host.
  CHECK(BestOf(5 * kGB, 0, 8 * kGB, 0));
  CHECK_FALSE(BestOf(5 * kGB, 0, 8 * kGB, 7 * kGB));
}

TEST_CASE("what the driver page-locks is a capacity, and what is past it can be pageable") {
  SearchFixture fixture("gpt2-medium", 1);
  fixture.Capacity(5 * kGB, 64 * kGB);
  const std::optional<Found> pinned = Searcher(fixture.inputs).Best({}).found;
  REQUIRE(pinned);
  REQUIRE(Offloads(pinned->candidate));
  const HostBytes free =
      Searcher(fixture.inputs).EstimateCandidate(pinned->candidate).footprint.host;
  REQUIRE(free.pinned > kGB / 2);
  std::optional<uint64_t>& limit = fixture.inputs.clusters[0].cluster.pinned_limit_bytes;
  limit = free.pinned;
  CHECK(Searcher(fixture.inputs).Best({}).found->candidate == pinned->candidate);
  limit = kGB / 4;
  CHECK_FALSE(Searcher(fixture.inputs).Best({}).found);
  fixture.inputs.space.pin_memory = {true, false};
  Searcher searcher(fixture.inputs);
  const std::optional<Found> pageable = searcher.Best({}).found;
  REQUIRE(pageable);
  CHECK_FALSE(pageable->candidate.pin_memory);
  CHECK(pageable->tokens_per_second <= pinned->tokens_per_second);
  const ChoiceEstimate choice = searcher.EstimateCandidate(pageable->candidate);
  CHECK(choice.footprint.host.pinned <= *limit);
  CHECK(choice.fits);
  CHECK_FALSE(PinsMemory(choice.setup.zero));
  CHECK(CandidateOf(choice.setup) == pageable->candidate);
  // Where there is room for it, what is pinned is faster, and no choice is there twice.
  limit = 64 * kGB;
  CHECK(Searcher(fixture.inputs).Best({}).found->candidate == pinned->candidate);
  std::vector<Candidate> groups = Groups(fixture.inputs.space);
  const size_t all = groups.size();
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  CHECK(groups.size() == all);
}

TEST_CASE("the GPU memory that a choice needs has the reserve in it") {
  SearchFixture fixture("gpt2", 1);
  fixture.inputs.clusters[0].cluster.gpu_reserve_bytes = kGB;
  fixture.inputs.space.micro_batches = {4};
  fixture.inputs.space.grad_accums = {1};
  fixture.inputs.space.offload_optimizer = {{}};
  fixture.inputs.space.offload_param = {OffloadDevice::kNone};
  Searcher searcher(fixture.inputs);
  Question least;
  least.objective = Objective::kHeadroom;
  const std::optional<Found> found = searcher.Best(least).found;
  REQUIRE(found);
  const uint64_t needed = Searcher(fixture.inputs).GpuBytesNeeded(*found);
  CHECK(needed == found->gpu_bytes + kGB);
  least.gpu_capacity_bytes = needed;
  CHECK(searcher.Best(least).found);
  least.gpu_capacity_bytes = needed - 1;
  CHECK_FALSE(searcher.Best(least).found);
}

}  // namespace
}  // namespace zeroplan
