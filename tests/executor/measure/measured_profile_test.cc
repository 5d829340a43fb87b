// A made-up measurement becomes a profile that loads, with and without a base.
#include "executor/measure/measured_profile.h"

#include <doctest/doctest.h>

#include "core/base/error.h"
#include "executor/measure/measurement.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/writer.h"

namespace zeroplan {
namespace {

MachineMeasurement TwoGpus() {
  MachineMeasurement m;
  m.when = "2026-01-31";
  m.version = "0.0.0";
  m.gpus = 2;
  m.machine = {550.5 * 1024 * 1024 * 1024, 96};
  m.host = HostBandwidths{147.123e9, 184.567e9, 96, uint64_t{1} << 33, 500'000'000};
  m.disk = DiskRates{2.41e9, 1.29e9, uint64_t{1} << 31, true, 4};
  m.disk_folder = "/scratch";
  m.disk_free_bytes = 1.5e12;
  DeviceProperties device;
  device.name = "NVIDIA H200";
  device.compute_major = 9;
  device.total_bytes = 150.1e9;
  device.sm_count = 132;
  device.max_sm_clock = 1980e6;
  device.memory_bandwidth = 4.9e12;
  device.fused_attention = true;
  device.libraries = "CUDA 13.0";
  m.device = device;
  KernelRates& k = m.kernels;
  k.launch_seconds = 1.23456e-6;
  k.copy_bandwidth = 4.212345e12;
  k.reachable[Dtype::kBF16] = {16384, 701.23456e12};
  k.gemm = {{GemmKind::kForward, Dtype::kBF16, 2048, 768, 2304, 498.76543e12},
            {GemmKind::kWeight, Dtype::kBF16, 2048, 768, 2304, 471.11111e12}};
  k.attention = {{4, 12, 1024, 64, 301.5e12, 250.25e12}};
  k.memory = {{KernelId::kAdamW, 1e9, 3.1e-4}, {KernelId::kAdamW, 1e6, 2.5e-6}};
  k.power = PowerRates{690, 123, 1.03e-12, 102e-12, 0.7, 1524e6, 16384, 2048, 8192};
  m.pcie = PcieMeasurement{{54.7e9, 55.2e9, 97.5e9}, CopyRates{108e9, 90e9, 150e9}, {}};
  m.pcie->copies = {{1048576, 22.19e-6, 21.44e-6}, {268435456, 4839e-6, 4851e-6}};
  m.collectives = {{CollectiveOp::kReduceScatter, 2, 16384, 16.5e-6},
                   {CollectiveOp::kAllGather, 2, 1073741824, 2009.04e-6},
                   {CollectiveOp::kAllReduce, 2, 16384, 17.5e-6}};
  m.nccl_environment = "NCCL_P2P_DISABLE=1";
  m.overlap = OverlapShares{0.97, 0.8, 16384, 1600, 4800, 512.0 * 1024 * 1024};
  m.runtime = {{2, 1.2e9, 0.3e9}, {1, 0.8e9, std::nullopt}};
  return m;
}

TEST_CASE("four digits") {
  CHECK(FourDigits(123.456) == 123.5);
  CHECK(FourDigits(1.23456e-6) == 1.235e-6);
  CHECK(FourDigits(98765.4) == 98770);
  CHECK(FourDigits(0) == 0);
}

TEST_CASE("a measured profile loads and holds what was measured") {
  const HardwareProfile base = LoadProfile("hgx-h200");
  const HardwareProfile profile = MeasuredProfile(base, TwoGpus(), "mine");
  const HardwareProfile read = ParseProfile(WriteProfile(profile), profile.source);
  CHECK(read == profile);
  CHECK(read.name == "mine");
  CHECK(read.node.gpus.value == 2);
  CHECK(read.node.host_memory.written == 550.5);
  CHECK(read.node.nvme_capacity->value < 1.5e12);
  CHECK_FALSE(read.node.nvme_drives);  // the base's 8 are not what one folder was measured on
  CHECK(read.gpu.launch_overhead.written == 1.235);
  CHECK(read.gpu.launch_overhead.source == FigureSource::kMeasured);
  CHECK(read.gpu.launch_overhead.reference.find("CUDA 13.0") != std::string::npos);
  CHECK(read.gpu.launch_overhead.reference.find("2026-01-31") != std::string::npos);
  CHECK(read.gpu.dense_peaks == base.gpu.dense_peaks);  // not measured
  CHECK(read.gpu.reachable_peaks.at(Dtype::kBF16).written == 701.2);
  REQUIRE(read.gpu.gemm->rows.size() == 2);
  CHECK(read.gpu.gemm->rows[0].flops_per_second == 498.8e12);
  CHECK(!read.gpu.memory_kernels);
  REQUIRE(read.gpu.kernels.has_value());
  CHECK(read.gpu.kernels->rows[0].bytes == 1e6);  // sorted
  REQUIRE(read.gpu.power.has_value());
  CHECK(read.gpu.power->flop.written == 1.03);
  CHECK(read.gpu.power->flop.value == doctest::Approx(1.03e-12));
  REQUIRE(read.node.collectives->rows.size() == 3);
  CHECK(read.node.nccl_environment == "NCCL_P2P_DISABLE=1");
  MachineMeasurement plain = TwoGpus();
  plain.nccl_environment.clear();
  const std::string text = WriteProfile(MeasuredProfile(base, plain, "mine"));
  CHECK(ParseProfile(text, "mine").node.nccl_environment == "");
  CHECK(read.node.collectives->rows[0].op == CollectiveOp::kAllReduce);
  REQUIRE(read.runtime.size() == 2);
  CHECK(read.runtime[0].world_size == 1);
  CHECK(read.runtime[1].bytes.value == doctest::Approx(1.2e9).epsilon(1e-3));
  CHECK(!read.runtime[0].communicator.has_value());
  REQUIRE(read.runtime[1].communicator.has_value());
  CHECK(read.runtime[1].communicator->value == doctest::Approx(0.3e9).epsilon(1e-3));
}

TEST_CASE("the network between hosts takes the place of the base's") {
  MachineMeasurement m = TwoGpus();
  const HardwareProfile base = LoadProfile("hgx-h200");
  REQUIRE(base.network);
  CHECK(MeasuredProfile(base, m, "mine").network == base.network);
  struct Rates {
    double by_groups, whole, most, reached, reached_by_groups;
  };
  for (const Rates& rates : {Rates{5e9, 2.5e9, 5e9, 0.5, 1}, {3e9, 4e9, 4e9, 1, 0.75}}) {
    CAPTURE(rates.by_groups);
    m.network = NetworkMeasurement{rates.by_groups, rates.whole, 31.2345e-6, 64.0 * 1024 * 1024,
                                   0.75 * rates.whole};
    const HardwareProfile profile = MeasuredProfile(base, m, "mine");
    const HardwareProfile read = ParseProfile(WriteProfile(profile), profile.source);
    CHECK(read == profile);
    CHECK(read.network->bandwidth_per_node.value == rates.most);
    CHECK(read.network->latency.written == 31.23);
    CHECK(read.network->reached->value == rates.reached);
    CHECK(read.network->reached_by_groups->value == rates.reached_by_groups);
    CHECK(read.network->reached_by_groups->reference.find("64.00 MiB") != std::string::npos);
    CHECK(read.network->reached_by_all_reduces->value == 0.75 * rates.reached);
    CHECK(read.network->latency.reference.find("2 x NVIDIA H200") != std::string::npos);
  }
}

TEST_CASE("products of eight bits, on a base that does not know them or says less") {
  MachineMeasurement m = TwoGpus();
  const double rate = 1312.34567e12;
  m.kernels.gemm.push_back({GemmKind::kForward, Dtype::kE4M3, 8192, 4096, 4096, rate});
  m.kernels.gemm.push_back({GemmKind::kWeight, Dtype::kE4M3, 8192, 4096, 4096, 0.9 * rate});
  m.kernels.reachable[Dtype::kE4M3] = {16384, 1250e12};
  m.kernels.power->joules_per_flop_e4m3 = 0.61e-12;
  m.kernels.memory.push_back({KernelId::kQuantize, 1e9, 3e-4});
  const auto measured = [&](const std::optional<HardwareProfile>& base) {
    const HardwareProfile profile = MeasuredProfile(base, m, "mine");
    const HardwareProfile read = ParseProfile(WriteProfile(profile), profile.source);
    CHECK(read == profile);
    CHECK(read.gpu.gemm->rows.at(2).dtype == Dtype::kE4M3);
    CHECK(read.gpu.gemm->rows[2].flops_per_second == 1312e12);
    CHECK(read.gpu.reachable_peaks.at(Dtype::kE4M3).written == 1250);
    CHECK(read.gpu.power->flop_e4m3->written == 0.61);
    return read.gpu.dense_peaks.at(Dtype::kE4M3);
  };
  HardwareProfile base = LoadProfile("hgx-h200");
  CHECK(measured(base) == base.gpu.dense_peaks.at(Dtype::kE4M3));
  const double of_clock = 8192.0 * 132 * 1980e6;
  base.gpu.dense_peaks.erase(Dtype::kE4M3);
  CHECK(measured(base).value == doctest::Approx(of_clock).epsilon(1e-3));
  base.gpu.dense_peaks[Dtype::kE4M3] = base.gpu.dense_peaks.at(Dtype::kBF16);
  CHECK(measured(base).value == doctest::Approx(of_clock).epsilon(1e-3));
  CHECK(measured(std::nullopt).source == FigureSource::kDerived);

  m = TwoGpus();
  m.device->name = "NVIDIA Unheard Of";
  m.device->compute_major = 8;  // an A100's
  CHECK(!MeasuredProfile(std::nullopt, m, "mine").gpu.dense_peaks.contains(Dtype::kE4M3));
}

TEST_CASE("what was not measured stays the base's, groups that are not there go") {
  const HardwareProfile base = LoadProfile("hgx-h200");
  MachineMeasurement m = TwoGpus();
  m.kernels = {};
  m.pcie.reset();
  m.collectives.clear();
  m.overlap.reset();
  m.runtime.clear();
  m.disk.reset();
  const HardwareProfile profile = MeasuredProfile(base, m, "mine");
  CHECK(ParseProfile(WriteProfile(profile), profile.source) == profile);
  CHECK(profile.gpu.gemm == base.gpu.gemm);
  CHECK(profile.node.pcie == base.node.pcie);
  CHECK(profile.node.nvme_read == base.node.nvme_read);
  CHECK(profile.runtime == base.runtime);
  REQUIRE(profile.node.collectives.has_value());
  CHECK(profile.node.collectives->rows.size() == 27);  // those of 2 GPUs
  CHECK(!profile.node.nccl_environment.has_value());   // nobody wrote down theirs
}

TEST_CASE("a GPU that no profile describes") {
  MachineMeasurement m = TwoGpus();
  m.device->name = "NVIDIA Unheard Of";
  const HardwareProfile profile = MeasuredProfile(std::nullopt, m, "mine");
  const HardwareProfile read = ParseProfile(WriteProfile(profile), profile.source);
  CHECK(read == profile);
  CHECK(read.gpu.architecture == "hopper");
  const Figure& peak = read.gpu.dense_peaks.at(Dtype::kBF16);
  CHECK(peak.source == FigureSource::kDerived);
  CHECK(peak.value == doctest::Approx(4096.0 * 132 * 1980e6).epsilon(1e-3));
  CHECK(read.node.link_kind == LinkKind::kNvlink);
  // 2009 us for half of a GiB into each rank, over 0.83.
  CHECK(read.node.gpu_link.value == doctest::Approx(267.2e9 / 0.83).epsilon(1e-2));

  m.collectives.clear();
  CHECK(MeasuredProfile(std::nullopt, m, "mine").node.link_kind == LinkKind::kPcie);
  m.device->compute_major = 42;
  CHECK_THROWS_AS(MeasuredProfile(std::nullopt, m, "mine"), Error);
}

TEST_CASE("a measurement that cannot be is refused on loading") {
  MachineMeasurement m = TwoGpus();
  m.kernels.gemm[0].flops_per_second = 1200e12;
  const HardwareProfile profile = MeasuredProfile(LoadProfile("hgx-h200"), m, "mine");
  CHECK_THROWS_AS(ParseProfile(WriteProfile(profile), "mine"), Error);
}

}  // namespace
}  // namespace zeroplan
