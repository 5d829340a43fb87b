#include "cost_models/collective_cost.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

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

// ---- slow, uneven and few rows ----

constexpr CollectiveOp kAllOps[] = {CollectiveOp::kAllReduce, CollectiveOp::kAllGather,
                                    CollectiveOp::kReduceScatter};

// A node whose NCCL goes another way than its link: a call, hops and bytes at `rate`.
struct MadeUpLink {
  double call, hop, rate;
  double Seconds(CollectiveOp op, double bytes, int ranks) const {
    const double rounds = op == CollectiveOp::kAllReduce ? 2 : 1;
    return call + rounds * ((ranks - 1) * hop + bytes * (ranks - 1) / ranks / rate);
  }
  // As 'hw measure' has them, each up to 5 % off.
  std::vector<CollectiveTime> Rows(const std::vector<int>& groups, std::mt19937_64& random) const {
    std::uniform_real_distribution<double> noise(0.95, 1.05);
    std::vector<CollectiveTime> rows;
    for (const int ranks : groups) {
      for (const CollectiveOp op : kAllOps) {
        for (double bytes = 16 * 1024; bytes <= 1 << 30; bytes *= 4) {
          rows.push_back({op, ranks, bytes, Seconds(op, bytes, ranks) * noise(random)});
        }
      }
    }
    return rows;
  }
};

double WorstRow(const HardwareProfile& profile) {
  double worst = 0;
  for (const CollectiveTime& row : profile.node.collectives->rows) {
    const CollectiveCost cost(profile, {row.world_size, 8});
    worst = std::max(worst, std::abs(cost.Seconds(row.op, row.bytes) / row.seconds - 1));
  }
  return worst;
}

TEST_CASE("rows of any rate are met within 15 %, and what they leave open follows their link") {
  std::mt19937_64 random(20261124);
  const auto between = [&](double low, double high) {
    return std::exp(std::uniform_real_distribution<double>(std::log(low), std::log(high))(random));
  };
  const std::vector<std::vector<int>> groups = {{2}, {2, 4}, {2, 4, 8}, {8}};
  // What is kept of the rows.
  enum Part : int { kAll, kOneSize, kOneOp, kQuick, kSome, kParts };
  for (int i = 0; i < 400; ++i) {
    HardwareProfile profile = PlainProfile();
    profile.node.gpu_link = Number(450e9);
    profile.node.link_kind = i % 3 == 0 ? LinkKind::kPcie : LinkKind::kNvlink;
    const MadeUpLink link{between(15e-6, 60e-6), i % 2 == 0 ? 0 : between(1e-6, 50e-6),
                          between(0.5e9, 100e9)};
    std::vector<CollectiveTime> rows = link.Rows(groups[i % groups.size()], random);
    const int part = i / 4 % kParts;
    if (part == kOneSize) {
      const double size = (16 << 20) * std::exp2(2 * (i / 20 % 4));
      std::erase_if(rows, [&](const CollectiveTime& row) { return row.bytes != size; });
    } else if (part == kOneOp) {
      const CollectiveOp op = kAllOps[i / 20 % 3];
      std::erase_if(rows, [&](const CollectiveTime& row) { return row.op != op; });
    } else if (part == kQuick) {
      std::erase_if(rows, [](const CollectiveTime& row) {
        return static_cast<int>(std::log2(row.bytes)) % 4 != 2;
      });
    } else if (part == kSome) {
      std::shuffle(rows.begin(), rows.end(), random);
      rows.resize(5);
      rows.push_back({kAllOps[i % 3], rows[0].world_size, 1 << 28,
                      link.Seconds(kAllOps[i % 3], 1 << 28, rows[0].world_size)});
    }
    profile.node.collectives.emplace();
    profile.node.collectives->rows = rows;
    CAPTURE(i);
    CAPTURE(link.rate);
    CHECK(WorstRow(profile) < 0.15);
    // Sizes, and operations and groups, without rows. Twice: a term that few rows tell is off by
    // more than their noise; the link's datasheet would be off by 4 to 900.
    for (const int ranks : groups[i % groups.size()]) {
      const CollectiveCost cost(profile, {ranks, 8});
      for (const CollectiveOp op : kAllOps) {
        const double ratio = cost.Seconds(op, 3e8) / link.Seconds(op, 3e8, ranks);
        CHECK(ratio > (part == kAll ? 0.85 : 0.5));
        CHECK(ratio < (part == kAll ? 1.15 : 2));
      }
    }
  }
}

TEST_CASE("a row that the formula cannot meet is met, and those beside it stay") {
  std::mt19937_64 random(7);
  const MadeUpLink link{20e-6, 0, 4e9};
  HardwareProfile profile = PlainProfile();
  profile.node.collectives.emplace();
  profile.node.collectives->rows = link.Rows({2, 4}, random);
  const std::vector<CollectiveTime> rows = profile.node.collectives->rows;
  CHECK(FitRings(profile, 8).worst_error < 0.3);
  for (const double times : {3.0, 0.4}) {
    CAPTURE(times);
    profile.node.collectives->rows = rows;
    profile.node.collectives->rows[6].seconds *= times;  // of 64 MiB
    const RingFit fit = FitRings(profile, 8);
    CHECK(fit.worst_error > 0.5);
    CHECK(fit.median_error < 0.1);
    CHECK(WorstRow(profile) < 0.15);
    // What searches are bounded by: no bytes travel faster, and more bytes do not cost more each.
    const CollectiveCost cost(profile, {2, 8});
    for (const CollectiveTime& row : profile.node.collectives->rows) {
      if (row.world_size != 2) continue;
      const double sent = row.bytes / 2 * (row.op == CollectiveOp::kAllReduce ? 2 : 1);
      CHECK(sent / cost.Seconds(row.op, row.bytes) <= cost.BytesPerSecond());
      CHECK(cost.LeastSeconds(row.op, row.bytes) <= cost.Seconds(row.op, row.bytes));
      const double more = cost.LeastSeconds(row.op, 1.5 * row.bytes) / 1.5;
      CHECK(more <= cost.LeastSeconds(row.op, row.bytes) * (1 + 1e-12));
    }
  }
}

TEST_CASE("rows that do not tell the link's rate are refused by name") {
  HardwareProfile profile = PlainProfile();
  profile.source = "mine.json";
  profile.node.collectives.emplace();
  profile.node.collectives->rows = {{CollectiveOp::kAllGather, 2, 16384, 30e-6},
                                    {CollectiveOp::kAllGather, 2, 65536, 31e-6}};
  CHECK_THROWS_WITH_AS(
      FitRings(profile, 8),
      doctest::Contains("mine.json: link.collectives: no row takes longer than what a call costs"),
      Error);
}

// 2 nodes of 8: links of 83 GB/s (0.83 of 100), the node's adapters 92 GB/s (0.92 of 100) or
// slower.
HardwareProfile TwoNodes(double network) {
  HardwareProfile profile = PlainProfile();
  profile.network = NetworkProfile{"plain", Number(network), Number(2e-6)};
  return profile;
}

TEST_CASE("2 nodes of 8: rings at the slower of link and network, a tree where less crosses") {
  constexpr double kBytes = 160e9;  // so large that latencies and roots are below 1e-3
  const double own_gather = 3.50 / 0.885 / 1e12;
  {
    // 15/16 of the bytes over 83 GB/s.
    const CollectiveCost fast(TwoNodes(1e12), {16, 8});
    CHECK(fast.Seconds(CollectiveOp::kAllGather, kBytes) ==
          Approx(kBytes * 15 / 16 / 83e9 + kBytes / 16 * own_gather).epsilon(2e-3));
    // A ring: 15/16 of the bytes twice; trees send all of them up and down each link.
    CHECK(fast.Seconds(CollectiveOp::kAllReduce, kBytes) ==
          Approx(kBytes * 30 / 16 / 83e9 + kBytes / 16 * 2.36 / 0.885 / 1e12).epsilon(2e-3));
  }
  {
    // The same over the node's 18.4 GB/s: a ring brings a node's own parts back over the network.
    const CollectiveCost slow(TwoNodes(20e9), {16, 8});
    CHECK(slow.Seconds(CollectiveOp::kAllGather, kBytes) ==
          Approx(kBytes * 15 / 16 / 18.4e9 + kBytes / 16 * own_gather).epsilon(2e-3));
    // All-reduce: a ring sends 30/16 of the bytes; the trees of two nodes half up and half down,
    // twice.
    CHECK(slow.Seconds(CollectiveOp::kAllReduce, kBytes) == Approx(kBytes / 18.4e9).epsilon(2e-3));
  }
}

TEST_CASE("ranks of the CPU: reductions go to the owners, or along the chain and back") {
  HardwareProfile profile = TwoNodes(1e9 / 0.92);  // collectives reach 1 GB/s
  profile.network->latency = Number(1e-3);
  profile.gpu.architecture = "cpu";
  const auto seconds = [&](CollectiveOp op, double bytes, int ranks) {
    return CollectiveCost(profile, {ranks, ranks / 2}).Seconds(op, bytes);
  };
  constexpr double kBytes = 160e9;
  const auto near = [](double value) { return Approx(value).epsilon(1e-2); };
  // Of 2 x 2 ranks each has 2 of 4 parts for the other host: S leaves a host, as along the chain.
  CHECK(seconds(CollectiveOp::kReduceScatter, kBytes, 4) == near(160));
  // Of 2 x 4 each has 4 of 8: 2 S directly.
  CHECK(seconds(CollectiveOp::kReduceScatter, kBytes, 8) == near(160));
  CHECK(seconds(CollectiveOp::kAllGather, kBytes, 8) == near(160 * 7.0 / 8));
  // No tree.
  CHECK(seconds(CollectiveOp::kAllReduce, kBytes, 8) == near(160 * 15.0 / 8));
  // Few bytes go directly: one message instead of two.
  CHECK(seconds(CollectiveOp::kReduceScatter, 8e3, 8) == Approx(1.05e-3).epsilon(0.05));
  // One rank a host: half of the bytes directly, all of them along the chain.
  CHECK(seconds(CollectiveOp::kReduceScatter, kBytes, 2) == near(80));
  // What searches are bounded by.
  for (const int ranks : {2, 4, 8}) {
    const CollectiveCost cost(profile, {ranks, ranks / 2});
    for (double bytes = 1e3; bytes < 1e12; bytes *= 1.5) {
      const double least = cost.LeastSeconds(CollectiveOp::kReduceScatter, bytes);
      CHECK(least / bytes >= cost.LeastSeconds(CollectiveOp::kReduceScatter, 1.5 * bytes) /
                                 (1.5 * bytes) * (1 - 1e-12));
      const double sent = bytes * (ranks - 1) / ranks;
      CHECK(sent / least <= cost.BytesPerSecond());
    }
  }
}

TEST_CASE("what collectives reach of a network is the profile's, where it says so") {
  HardwareProfile profile = TwoNodes(20e9);
  const CollectiveOp op = CollectiveOp::kReduceScatter;
  const double assumed = CollectiveCost(profile, {16, 8}).Seconds(op, 160e9);
  profile.network->reached = Number(0.46);  // switches that carry half
  const double own = 160e9 / 16 * 4.07 / 0.885 / 1e12;
  const double said = CollectiveCost(profile, {16, 8}).Seconds(op, 160e9);
  CHECK((said - own) / (assumed - own) == Approx(2).epsilon(2e-3));
}

TEST_CASE("groups at once reach a share of the network of their own, where the profile has it") {
  HardwareProfile profile = TwoNodes(2e9);
  profile.network->reached = Number(0.5);
  const auto network = [&](RankAxes axes, RankAxis axis) {
    return CollectiveCost(profile, {16, 8}).Over(axes, axis).Seconds(CollectiveOp::kAllGather, 4e9);
  };
  const double all = network({8, 16}, RankAxis::kAll), same = network({8, 16}, RankAxis::kReplica);
  const double one = network({16, 16}, RankAxis::kShard),
               inside = network({8, 16}, RankAxis::kShard);
  profile.network->reached_by_groups = Number(1);
  CHECK(network({8, 16}, RankAxis::kAll) == all);
  CHECK(network({16, 16}, RankAxis::kShard) == one);
  CHECK(network({8, 16}, RankAxis::kShard) == inside);
  // Eight groups of two: each gets an eighth of 1 GB/s, or of 2.
  CHECK(same == Approx(4e9 / 2 / (1e9 / 8)).epsilon(0.01));
  CHECK(network({8, 16}, RankAxis::kReplica) == Approx(same / 2).epsilon(0.01));
}

TEST_CASE("all-reduces of nodes of several GPUs go as they were measured") {
  HardwareProfile profile = TwoNodes(2e9);
  profile.network->reached = Number(1);
  const auto reduce = [&](ClusterShape shape) {
    return CollectiveCost(profile, shape).Seconds(CollectiveOp::kAllReduce, 4e9);
  };
  const auto gather = [&] {
    return CollectiveCost(profile, {16, 8}).Seconds(CollectiveOp::kAllGather, 4e9);
  };
  // Of a ring's bytes, 2 S (N-1)/N, a tree between two nodes sends N/(N-1) halves.
  const double as_tree = reduce({16, 8}), single = reduce({2, 1}), gathered = gather();
  CHECK(as_tree == Approx(4e9 / 2e9).epsilon(0.01));
  for (const double share : {0.5, 0.75, 1.25}) {
    profile.network->reached_by_all_reduces = Number(share);
    CHECK(reduce({16, 8}) == Approx(2 * 4e9 * 15 / 16 / (share * 2e9)).epsilon(0.01));
    CHECK(reduce({2, 1}) == single);  // its ring and its tree send the same
    CHECK(gather() == gathered);
  }
}

TEST_CASE("the slowest of many GPUs: more with the nodes, nothing on one") {
  CHECK(SlowestRank({1, 8}) == 1);
  CHECK(SlowestRank({8, 8}) == 1);
  // Expected maxima of 8, 16 and 1,024 normal values: 1.424, 1.766, 3.243 (tables of normal order
  // statistics), within the approximation's 0.01.
  CHECK(SlowestRank({16, 8}) == Approx(1 + 0.025 * (1.766 - 1.424)).epsilon(5e-4));
  CHECK(SlowestRank({1024, 8}) == Approx(1 + 0.025 * (3.243 - 1.424)).epsilon(5e-4));
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
  CHECK(seconds(CollectiveKind::kAllToAll, kWhole, kWhole) == gather);
  CHECK(seconds(CollectiveKind::kReduceScatter, kWhole, kPart) == scatter);
  // The whole shard is named as the target; the range is what is sent.
  CHECK(seconds(CollectiveKind::kReduceToOwners, kWhole, 9 * kWhole) == scatter);
  CHECK(seconds(CollectiveKind::kAllReduce, kWhole, kWhole) ==
        cost.Seconds(CollectiveOp::kAllReduce, 4e9));
}

TEST_CASE("an all-to-all over nodes: each rank's parts go to other nodes by themselves") {
  // 2 nodes of 8 ranks: of 16 parts a rank sends 8 to the other node, where a ring of all ranks
  // carries what each rank sends, 15 parts, over the adapters once.
  const CollectiveCost cost(TwoNodes(10e9), {16, 8});
  TinyProgram tiny(16, 1);
  constexpr uint64_t kWhole = 16'000'000'000;
  const double ring = cost.Seconds(
      tiny.program, tiny.MakeCollective(CollectiveKind::kAllGather, kWhole / 16, kWhole));
  const double direct =
      cost.Seconds(tiny.program, tiny.MakeCollective(CollectiveKind::kAllToAll, kWhole, kWhole));
  CHECK(direct / ring == doctest::Approx(8.0 * 8 / 15).epsilon(0.02));
}

}  // namespace
}  // namespace zeroplan
