#include "planner/footprint.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/lowering/lower.h"
#include "cost_models/memory_walk.h"
#include "tests/tiny_model.h"

namespace zeroplan {
namespace {

// 100 B a GPU, 50 B a host, 10 B a node's disk.
Footprint SmallFootprint() {
  Footprint footprint;
  footprint.gpu_class_bytes = {10, 15, 40, 20, 5};
  footprint.runtime_bytes = 10;
  footprint.host = {30, 20};
  footprint.nvme_bytes = 10;
  return footprint;
}

Cluster SmallCluster(uint64_t gpu_bytes, uint64_t host_bytes, uint64_t nvme_bytes) {
  Cluster cluster;
  cluster.gpu_capacity_bytes = gpu_bytes;
  cluster.host_capacity_bytes = host_bytes;
  cluster.nvme_capacity_bytes = nvme_bytes;
  return cluster;
}

TEST_CASE("misfits on every memory are all named; exactly full fits") {
  const Footprint footprint = SmallFootprint();
  CHECK(ExplainMisfit(footprint, SmallCluster(100, 50, 10)).empty());
  const std::string why = ExplainMisfit(footprint, SmallCluster(99, 49, 9));
  CHECK(why.find("GPU memory short by 1 B") != std::string::npos);
  CHECK(why.find("host memory short by 1 B") != std::string::npos);
  CHECK(why.find("NVMe short by 1 B") != std::string::npos);
  Cluster cluster;
  cluster.gpu_capacity_bytes = 100;  // host and disk not known: not checked
  CHECK(ExplainMisfit(footprint, cluster).empty());
}

TEST_CASE("a reserve stays free, and a misfit says so") {
  const Footprint footprint = SmallFootprint();
  Cluster cluster = SmallCluster(110, 60, 10);
  cluster.gpu_reserve_bytes = cluster.host_reserve_bytes = 10;
  CHECK(ExplainMisfit(footprint, cluster).empty());
  cluster.gpu_reserve_bytes = 11;
  CHECK(ExplainMisfit(footprint, cluster)
            .starts_with("GPU memory short by 1 B: needs 100 B, has 99 B (110 B less 11 B kept "
                         "free); largest: "));
  cluster.gpu_reserve_bytes = 0;
  cluster.host_reserve_bytes = 1000;
  CHECK(ExplainMisfit(footprint, cluster)
            .starts_with("host memory short by 50 B: needs 50 B, has 0 B (60 B less 1.00 KB kept "
                         "free)"));
  CHECK_FALSE(CapacityOf(Cluster{}).host_bytes.has_value());
}

TEST_CASE("what a host's system keeps: brackets by hand, up to 0.1 GB") {
  constexpr uint64_t kGib = uint64_t{1} << 30;
  // 1 GiB + 100 MiB = 1.179 GB.
  CHECK(HostReserveBytes(4 * kGib) == 1'200'000'000);
  // 1 + 0.8 + 0.8 + 0.06 * 48 = 5.48 GiB, and 100 MiB: 5.989 GB.
  CHECK(HostReserveBytes(64 * kGib) == 6'000'000'000);
  // 1 + 0.8 + 0.8 + 6.72 + 0.02 * 896 = 27.24 GiB, and 100 MiB: 29.354 GB.
  CHECK(HostReserveBytes(1024 * kGib) == 29'400'000'000);
  for (uint64_t bytes = 2 * kGib; bytes < 4096 * kGib; bytes = bytes * 3 / 2) {
    CHECK(HostReserveBytes(bytes) < bytes);
    CHECK(bytes - HostReserveBytes(bytes) <= bytes + kGib - HostReserveBytes(bytes + kGib));
  }
}

TEST_CASE("Check: what is short, by how much, and what takes most of it") {
  const Footprint footprint = SmallFootprint();
  CHECK(Check(footprint, {}).empty());
  CHECK(Check(footprint, {100, 50, 10}).empty());
  const std::vector<Shortage> all = Check(footprint, {70, 45, 9});
  REQUIRE(all.size() == 3);
  CHECK(all[0].kind == MemoryKind::kGpu);
  CHECK(all[0].needs == 100);
  CHECK(all[0].has == 70);
  CHECK(all[0].short_by() == 30);
  CHECK(all[0].largest.name == "optimizer");
  CHECK(all[0].largest.bytes == 40);
  CHECK(all[1].kind == MemoryKind::kHost);
  CHECK(all[1].short_by() == 5);
  CHECK(all[1].largest.name == "pinned");
  CHECK(all[1].largest.bytes == 30);
  CHECK(all[2].kind == MemoryKind::kNvme);
  CHECK(all[2].short_by() == 1);
  const std::vector<Shortage> pinned = Check(footprint, {.pinned_bytes = 29});
  REQUIRE(pinned.size() == 1);
  CHECK(pinned[0].kind == MemoryKind::kPinned);
  CHECK(pinned[0].needs == 30);
  CHECK(pinned[0].short_by() == 1);
  CHECK(Check(footprint, {.pinned_bytes = 30}).empty());
  const std::vector<Shortage> host = Check(footprint, {.host_bytes = 0});
  REQUIRE(host.size() == 1);
  CHECK(host[0].short_by() == 50);
}

TEST_CASE("Excess: above 1 exactly where something is short") {
  const MemoryTotals needs = SmallFootprint().totals();
  CHECK(Excess(needs, {}) == 0);
  CHECK(Excess(needs, {200, 100, 40}) == 0.5);
  CHECK(Excess(needs, {100, 50, 10}) == 1);
  CHECK(Excess(needs, {200, 25, 40}) == 2);
  CHECK(Excess(needs, {.nvme_bytes = 0}) == 10);
  // One byte of many: a double rounds the ratio to 1.
  constexpr uint64_t kMany = uint64_t{1} << 62;
  CHECK(Excess({kMany, 0, 0}, {.gpu_bytes = kMany}) == 1);
  CHECK(Excess({kMany + 1, 0, 0}, {.gpu_bytes = kMany}) > 1);
  for (const Capacity& capacity :
       {Capacity{}, Capacity{100, 50, 10}, Capacity{99, 50, 10}, Capacity{100, 49, 10},
        Capacity{100, 50, 9}, Capacity{100, 50, 10, 30}, Capacity{100, 50, 10, 29}}) {
    CHECK(Fits(needs, capacity) == (Excess(needs, capacity) <= 1));
    CHECK(Fits(needs, capacity) == Check(SmallFootprint(), capacity).empty());
  }
}

TEST_CASE("FootprintOf: a rank's arenas, times the ranks of a node") {
  const ModelSpec model = testing::TinyModel(
      {.layers = 2, .hidden = 64, .ffn = 256, .vocab = 128, .padded_vocab = 128, .positions = 32});
  TrainSetup setup;
  setup.zero.stage = 3;
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  setup.zero.offload_param.device = OffloadDevice::kNvme;
  setup.zero.param_persistence_threshold = 0;
  setup.batch = {1, 2, 6, 32};
  const Program program = Lower(model, setup);
  Cluster cluster;
  cluster.gpus = 6;
  cluster.gpus_per_node = 4;
  cluster.runtime_bytes = 1000;
  const Footprint footprint = FootprintOf(program, cluster);
  CHECK(footprint == FootprintOf(WalkMemory(program), cluster));
  const auto& arenas = program.arena_bytes;
  CHECK(footprint.gpu_arena_bytes() == arenas[0]);
  CHECK(footprint.gpu_total() == arenas[0] + 1000);
  CHECK(footprint.host.pinned == 4 * arenas[1]);
  CHECK(footprint.host.pageable == 4 * arenas[2]);
  CHECK(footprint.nvme_bytes == 4 * arenas[3]);
  CHECK(arenas[1] > 0);
  CHECK(arenas[2] > 0);
  CHECK(arenas[3] > 0);
  const MemoryTotals totals = TotalsOf(arenas, {.communicators = 2}, cluster);
  CHECK(totals.gpu_bytes == footprint.gpu_total());
  CHECK(totals.host_bytes == footprint.host.total());
  CHECK(totals.nvme_bytes == footprint.nvme_bytes);
  uint64_t sum = 0;
  for (const NamedBytes& part : GpuClasses(footprint)) sum += part.bytes;
  CHECK(sum == footprint.gpu_total());
  CHECK(GpuClasses(footprint).front().name == "params");
  CHECK(GpuClasses(footprint).back().name == "runtime");
  CHECK(GpuClasses(footprint).back().bytes == 1000);
}

TEST_CASE("a communicator that the program does not use is no part of its runtime") {
  for (const int ranks : {1, 4}) {
    Cluster cluster;
    cluster.gpus = cluster.gpus_per_node = ranks;
    cluster.runtime_bytes = 1000;
    cluster.communicator_bytes = 300;
    for (int stage = 0; stage <= 3; ++stage) {
      CAPTURE(ranks);
      CAPTURE(stage);
      TrainSetup setup;
      setup.zero.stage = stage;
      setup.zero.param_persistence_threshold = 0;
      setup.batch = {1, 2, ranks, 8};
      const Program program = Lower(testing::TinyModel(), setup);
      const uint64_t expected = ranks > 1 && stage == 0 ? 700 : 1000;
      CHECK(FootprintOf(program, cluster).runtime_bytes == expected);
      CHECK(TotalsOf(program.arena_bytes, OutsideArenasOf(program), cluster).gpu_bytes ==
            program.arena_bytes[0] + expected);
    }
  }
}

}  // namespace
}  // namespace zeroplan
