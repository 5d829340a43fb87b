#include "cost_models/collective_cost.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/base/error.h"
#include "tests/cost_models/plain_profile.h"
#include "tests/cost_models/tiny_program.h"

namespace zeroplan {
namespace {

using doctest::Approx;

// 1 us to start, 100 GB/s a link, the own part at 1 TB/s, nothing else.
RingConstants PlainRings() {
  RingConstants rings;
  rings.base_seconds = 1e-6;
  rings.link_seconds_per_byte = 1e-11;
  rings.copy_seconds_per_byte = {0, 1e-12, 2e-12};
  return rings;
}

TEST_CASE("a ring of 4: steps, bytes sent, own part") {
  // 4 GB: a part is 1 GB, 3 GB are sent, in 3 steps of 3.4 us (Simple).
  CHECK(RingSeconds(PlainRings(), CollectiveOp::kAllGather, 4e9, 4) ==
        Approx(1e-6 + 3 * 3.4e-6 + 0.03 + 0.001).epsilon(1e-9));
  CHECK(RingSeconds(PlainRings(), CollectiveOp::kReduceScatter, 4e9, 4) ==
        Approx(1e-6 + 3 * 3.4e-6 + 0.03 + 0.002).epsilon(1e-9));
  CHECK(RingSeconds(PlainRings(), CollectiveOp::kAllReduce, 4e9, 4) ==
        Approx(1e-6 + 6 * 3.4e-6 + 0.06).epsilon(1e-9));
  RingConstants pipelined = PlainRings();
  pipelined.pipeline_seconds_per_root_byte = 1e-9;
  CHECK(RingSeconds(pipelined, CollectiveOp::kAllReduce, 4e9, 4) ==
        Approx(1e-6 + 6 * 3.4e-6 + 0.06 + 1e-9 * std::sqrt(1e9)).epsilon(1e-9));
  CHECK(RingSeconds(PlainRings(), CollectiveOp::kAllReduce, 4e9, 1) == 0);
}

TEST_CASE("small messages take the protocol of short steps") {
  // 4 KB over 32 ranks: LL, 6.6 us and 62 steps of 0.6 us; Simple would take 62 * 3.4 us.
  const double moved = 2 * 4096.0 * 31 / 32 * 1e-11;
  CHECK(RingSeconds(PlainRings(), CollectiveOp::kAllReduce, 4096, 32) ==
        Approx(6.6e-6 + 62 * 0.6e-6 + moved / 0.42));
  RingConstants pcie = PlainRings();
  pcie.nvlink = false;
  CHECK(RingSeconds(pcie, CollectiveOp::kAllReduce, 4096, 32) ==
        Approx(6.6e-6 + 62 * 1.0e-6 + moved / 0.42));
}

TEST_CASE("a node without measurements: 0.83 of the link, PCIe through host memory") {
  HardwareProfile profile = PlainProfile();
  CHECK(FitRings(profile, 8).link_seconds_per_byte == Approx(1 / 83e9));
  profile.node.link_kind = LinkKind::kPcie;
  // Two GPUs: 80 GB/s of both directions each, half of it sent. Eight: 200 / 8 / 2.
  CHECK(FitRings(profile, 2).link_seconds_per_byte == Approx(1 / 40e9));
  CHECK(FitRings(profile, 8).link_seconds_per_byte == Approx(1 / 12.5e9));
}

TEST_CASE("constants are recovered from times that the formula made") {
  HardwareProfile profile = PlainProfile();
  RingConstants truth = FitRings(profile, 8);
  truth.link_seconds_per_byte *= 0.8;
  truth.base_seconds = 7e-6;
  truth.copy_seconds_per_byte = {1e-12, 2e-12, 3e-12};
  profile.node.collectives.emplace();
  for (const auto op :
       {CollectiveOp::kAllReduce, CollectiveOp::kAllGather, CollectiveOp::kReduceScatter}) {
    for (const int ranks : {2, 8}) {
      for (const double bytes : {1e7, 1e8, 1e9}) {
        profile.node.collectives->rows.push_back(
            {op, ranks, bytes, RingSeconds(truth, op, bytes, ranks)});
      }
    }
  }
  const RingConstants fitted = FitRings(profile, 8);
  CHECK(fitted.link_seconds_per_byte == Approx(truth.link_seconds_per_byte).epsilon(1e-6));
  CHECK(fitted.base_seconds == Approx(7e-6).epsilon(1e-3));
  for (size_t i = 0; i < 3; ++i) {
    CHECK(fitted.copy_seconds_per_byte[i] == Approx(truth.copy_seconds_per_byte[i]).epsilon(1e-3));
  }
}

// 2 nodes of 8: links of 83 GB/s (0.83 of 100), the node's adapters 92 GB/s (0.92 of 100) or
// slower.
HardwareProfile TwoNodes(double network) {
  HardwareProfile profile = PlainProfile();
  profile.network = NetworkProfile{"plain", Number(network), Number(2e-6)};
  return profile;
}

TEST_CASE("2 nodes of 8: a fast network leaves the flat ring, a slow one the hierarchy") {
  constexpr double kBytes = 160e9;  // so large that latencies and roots are below 1e-3
  const double own_per_byte = 3.50 / 0.885 / 1e12;
  {
    const CollectiveCost fast(TwoNodes(1e12), {16, 8});
    // Flat: 15/16 of the bytes over 83 GB/s; hierarchical: half of them over 0.92 TB/s into each
    // node, then 7/8 over 83 GB/s: 1.807 s and own 0.040, against 0.087 + 1.687 and own 0.079.
    const double flat = kBytes * 15 / 16 / 83e9 + kBytes / 16 * own_per_byte;
    const double hierarchical =
        kBytes / 2 / 0.92e12 + kBytes * 7 / 8 / 83e9 + kBytes / 8 * own_per_byte;
    CHECK(flat < hierarchical);
    CHECK(fast.Seconds(CollectiveOp::kAllGather, kBytes) == Approx(flat).epsilon(2e-3));
  }
  {
    const CollectiveCost slow(TwoNodes(20e9), {16, 8});
    // Flat: 15/16 over 18.4 GB/s = 8.15 s; hierarchical: 1/2 over 18.4 and 7/8 over 83 = 6.03 s.
    const double hierarchical =
        kBytes / 2 / 18.4e9 + kBytes * 7 / 8 / 83e9 + kBytes / 8 * own_per_byte;
    CHECK(slow.Seconds(CollectiveOp::kAllGather, kBytes) == Approx(hierarchical).epsilon(2e-3));
    // All-reduce: twice the halves between the nodes, a reduce-scatter and an all-gather inside.
    const double own = (3.50 + 4.07) / 0.885 / 1e12;
    CHECK(slow.Seconds(CollectiveOp::kAllReduce, kBytes) ==
          Approx(kBytes / 18.4e9 + 2 * kBytes * 7 / 8 / 83e9 + kBytes / 8 * own).epsilon(2e-3));
  }
}

TEST_CASE("many nodes and few bytes: an all-reduce goes up and down a tree") {
  HardwareProfile profile = TwoNodes(100e9);
  profile.network->latency = Number(20e-6);
  const CollectiveCost wide(profile, {512, 8});  // 64 nodes, 6 levels
  const double moved = 2 * 1024.0 / 83e9;
  const double pipeline = 2 * std::sqrt(5.1e-6 / 83e9) * std::sqrt(1024.0 / 512);
  CHECK(wide.Seconds(CollectiveOp::kAllReduce, 1024) ==
        Approx(2.8e-6 + moved + 2 * (7 + 6) * 3.4e-6 + 2 * 6 * 20e-6 + pipeline));
}

TEST_CASE("several nodes need a network") {
  HardwareProfile profile = PlainProfile();
  profile.source = "mine.json";
  CHECK_NOTHROW(CollectiveCost(profile, {8, 8}));
  CHECK_THROWS_WITH_AS(CollectiveCost(profile, {16, 8}),
                       doctest::Contains("mine.json: network.bandwidth_per_node is missing"),
                       Error);
}

TEST_CASE("groups: the links' time or the host's, whichever is longer") {
  const CollectiveCost cost(PlainProfile(), {4, 8});
  const double large = cost.Seconds(CollectiveOp::kAllGather, 1e9, 1);
  CHECK(cost.Seconds(CollectiveOp::kAllGather, 1e9, 100) == large);
  CHECK(cost.Seconds(CollectiveOp::kAllGather, 100, 1) == Approx(16e-6));
  CHECK(cost.Seconds(CollectiveOp::kAllGather, 100, 11) == Approx(16e-6 + 10 * 3.3e-6));
}

TEST_CASE("a program's collectives count as what they spell out") {
  const CollectiveCost cost(PlainProfile(), {4, 8});
  TinyProgram tiny(4, 1);
  auto seconds = [&](CollectiveKind kind, uint64_t src, uint64_t dst) {
    return cost.Seconds(tiny.program, tiny.MakeCollective(kind, src, dst));
  };
  const double gather = cost.Seconds(CollectiveOp::kAllGather, 4e9);
  const double scatter = cost.Seconds(CollectiveOp::kReduceScatter, 4e9);
  constexpr uint64_t kPart = 1'000'000'000, kWhole = 4 * kPart;
  CHECK(seconds(CollectiveKind::kAllGather, kPart, kWhole) == gather);
  CHECK(seconds(CollectiveKind::kBroadcast, kPart, kWhole) == gather);
  CHECK(seconds(CollectiveKind::kReduceScatter, kWhole, kPart) == scatter);
  // The whole shard is named as the target; the range is what is sent.
  CHECK(seconds(CollectiveKind::kReduceToOwners, kWhole, 9 * kWhole) == scatter);
  CHECK(seconds(CollectiveKind::kAllReduce, kWhole, kWhole) ==
        cost.Seconds(CollectiveOp::kAllReduce, 4e9));
}

}  // namespace
}  // namespace zeroplan
