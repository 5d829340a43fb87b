// What is measured of ranks of the CPU becomes a profile that loads and plans.
#include <doctest/doctest.h>

#include <string>

#include "core/base/error.h"
#include "executor/measure/measure_cpu_ranks.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/writer.h"

namespace zeroplan {
namespace {

CpuRanksMeasurement TwoHosts() {
  CpuRanksMeasurement m;
  m.when = "2026-01-31";
  m.version = "0.0.0";
  m.hosts = 2;
  m.ranks_per_host = 4;
  m.machine = {32.0 * 1024 * 1024 * 1024, 2};
  m.processor = "A CPU";
  m.clock = 3e9;
  m.resident_bytes = 40e6;
  m.copy_bandwidth = 6e9;
  m.call_seconds = 2e-8;
  m.gemm = {{GemmKind::kForward, Dtype::kF32, 128, 256, 1024, 42e9},
            {GemmKind::kWeight, Dtype::kF32, 128, 256, 1024, 31e9}};
  m.kernels = {{KernelId::kAdamW, 1e6, 30e-6}, {KernelId::kAdamW, 1e8, 20e-3}};
  m.collectives = {{CollectiveOp::kAllReduce, 2, 16384, 90e-6},
                   {CollectiveOp::kAllReduce, 2, 16777216, 60e-3},
                   {CollectiveOp::kAllGather, 4, 16777216, 50e-3}};
  m.network = NetworkMeasurement{6.3e6, 0, 10e-3, 4194304};
  return m;
}

TEST_CASE("ranks of the CPU become a profile that loads") {
  const HardwareProfile profile = CpuRanksProfile(TwoHosts(), "mine");
  const HardwareProfile read = ParseProfile(WriteProfile(profile), profile.source);
  CHECK(read == profile);
  CHECK(read.gpu.architecture == "cpu");
  CHECK(DefaultDtype(read) == Dtype::kF32);
  CHECK(read.node.gpus.value == 4);
  CHECK(read.gpu.usable_memory.value == doctest::Approx(8.0 * 1024 * 1024 * 1024));
  CHECK(read.gpu.dense_peaks.at(Dtype::kF32).value == doctest::Approx(1.01 * 42e9));
  CHECK(read.gpu.hbm_bandwidth.value == doctest::Approx(1.01 * 1e6 / 30e-6).epsilon(1e-3));
  CHECK(read.node.collectives->rows.size() == 3);
  CHECK(read.network->bandwidth_per_node.value == 6.3e6);
  CHECK(read.network->reached->value == 1);
  CHECK_FALSE(read.network->reached_by_groups);
  CHECK(read.network->latency.value == doctest::Approx(10e-3));
  CHECK(read.network->latency.source == FigureSource::kMeasured);
  CHECK(read.network->latency.reference.find("2 x 4 ranks of 1 threads on A CPU") !=
        std::string::npos);
}

TEST_CASE("a host alone has no network, a rank alone no collectives") {
  CpuRanksMeasurement m = TwoHosts();
  m.network.reset();
  m.hosts = m.ranks_per_host = 1;
  m.collectives.clear();
  m.clock = 0;  // not known
  const HardwareProfile profile = CpuRanksProfile(m, "mine");
  CHECK(ParseProfile(WriteProfile(profile), profile.source) == profile);
  CHECK(!profile.network);
  CHECK(!profile.node.collectives);
}

TEST_CASE("one rank is measured") {
  SingleProcess alone;
  const CpuRanksMeasurement m = MeasureCpuRanks(alone, {.threads = 1, .quick = true});
  CHECK(m.ranks_per_host == 1);
  CHECK(m.gemm.size() > 10);
  CHECK(m.kernels.size() > 10);
  CHECK(m.copy_bandwidth > 0);
  CHECK(m.resident_bytes > 0);
}

}  // namespace
}  // namespace zeroplan
