// Every term that hw measure finds reaches what plan predicts, through the profile's file.
#include <doctest/doctest.h>

#include <functional>

#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "cost_models/cost_model.h"
#include "cost_models/step_time.h"
#include "executor/measure/measured_profile.h"
#include "hwprofiles/loader.h"
#include "hwprofiles/writer.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

constexpr int kGpus = 8;

HardwareProfile Base() { return LoadProfile(MeasuredH200()); }

Program SmallProgram(OffloadDevice optimizer, int gpus = kGpus) {
  ModelSpec model = LoadModel("gpt2");
  model.layers = 3;
  TrainSetup setup;
  setup.zero.stage = 2;
  setup.zero.offload_optimizer.device = optimizer;
  setup.batch = {.micro_batch = 8, .grad_accum = 1, .world_size = gpus, .seq_len = 1024};
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  return Lower(model, setup, lower);
}

double StepSeconds(const HardwareProfile& hardware, const Program& program) {
  const CostModel costs(hardware, ClusterShape{kGpus, kGpus});
  return StepTimer(costs).Time(program).total_seconds;
}

// As plan --hw FILE gets it.
HardwareProfile Read(const MachineMeasurement& measurement) {
  const HardwareProfile profile = MeasuredProfile(Base(), measurement, "mine");
  return ParseProfile(WriteProfile(profile), profile.source);
}

// A machine that was found to be like the base, but slower in one thing.
struct Slower {
  const char* what;
  OffloadDevice optimizer;
  std::function<void(MachineMeasurement&)> put;
};

std::vector<Slower> SlowerMachines() {
  const HardwareProfile base = Base();
  const auto no = OffloadDevice::kNone, cpu = OffloadDevice::kCpu, nvme = OffloadDevice::kNvme;
  const PcieProfile& pcie = base.node.pcie;
  const PcieMeasurement same{
      {pcie.to_device_single.value, pcie.from_device_single.value, pcie.both_single.value},
      CopyRates{pcie.to_device_all->value, pcie.from_device_all->value, pcie.both_all->value},
      pcie.copies->rows};
  const HostBandwidths host{base.node.triad_bandwidth->value, base.node.adam_bandwidth->value, 64};
  const DiskRates disk{base.node.nvme_read->value, base.node.nvme_write->value, 1 << 30, true, 4};
  return {
      {"gemm", no,
       [=](auto& m) {
         m.kernels.gemm = base.gpu.gemm->rows;
         for (GemmRate& row : m.kernels.gemm) row.flops_per_second *= 0.7;
       }},
      {"attention forward", no,
       [=](auto& m) {
         m.kernels.attention = base.gpu.attention->rows;
         for (AttentionRate& row : m.kernels.attention) row.forward_flops_per_second *= 0.6;
       }},
      {"attention backward", no,
       [=](auto& m) {
         m.kernels.attention = base.gpu.attention->rows;
         for (AttentionRate& row : m.kernels.attention) row.backward_flops_per_second *= 0.6;
       }},
      {"kernels that move memory", no,
       [=](auto& m) {
         m.kernels.memory = base.gpu.kernels->rows;
         for (NamedKernelTime& row : m.kernels.memory) row.seconds *= 1.5;
       }},
      {"launches", no,
       [=](auto& m) { m.kernels.launch_seconds = 4 * base.gpu.launch_overhead.value; }},
      {"collectives", no,
       [=](auto& m) {
         m.collectives = base.node.collectives->rows;
         for (CollectiveTime& row : m.collectives) row.seconds *= 2;
       }},
      {"products beside collectives", no,
       [=](auto& m) { m.overlap = OverlapShares{0.5, base.node.overlapped_collective->value}; }},
      {"host AdamW", cpu,
       [=](auto& m) {
         m.host = host;
         m.host->adam *= 0.5;
       }},
      {"host triad", cpu,
       [=](auto& m) {
         m.host = host;
         m.host->triad *= 0.25;
       }},
      {"copies, all GPUs at once", cpu,
       [=](auto& m) {
         m.pcie = same;
         m.pcie->all = CopyRates{same.all->to_device * 0.4, same.all->from_device * 0.4,
                                 same.all->both * 0.4};
       }},
      {"disk read", nvme,
       [=](auto& m) {
         m.disk = disk;
         m.disk->read *= 0.5;
       }},
      {"disk write", nvme,
       [=](auto& m) {
         m.disk = disk;
         m.disk->write *= 0.5;
       }},
  };
}

TEST_CASE("a machine found to be slower in one thing is predicted to be slower") {
  const HardwareProfile base = Base();
  for (const Slower& machine : SlowerMachines()) {
    CAPTURE(machine.what);
    const Program program = SmallProgram(machine.optimizer);
    MachineMeasurement measurement;
    machine.put(measurement);
    // Half a percent: what rounding to four digits cannot do.
    CHECK(StepSeconds(Read(measurement), program) > 1.005 * StepSeconds(base, program));
  }
}

TEST_CASE("copies of one GPU alone are predicted by its own table") {
  MachineMeasurement measurement;
  const PcieProfile pcie = Base().node.pcie;
  measurement.pcie =
      PcieMeasurement{{pcie.to_device_single.value * 0.5, pcie.from_device_single.value * 0.5,
                       pcie.both_single.value * 0.5},
                      std::nullopt,
                      pcie.copies->rows};
  for (CopyTime& row : measurement.pcie->copies) {
    row.to_device_seconds *= 2;
    row.from_device_seconds *= 2;
  }
  const Program program = SmallProgram(OffloadDevice::kCpu, 1);
  const CostModel before(Base(), ClusterShape{1, 1}), after(Read(measurement), ClusterShape{1, 1});
  CHECK(StepTimer(after).Time(program).total_seconds >
        1.05 * StepTimer(before).Time(program).total_seconds);
}

TEST_CASE("memory outside the arenas is that of the world's size") {
  MachineMeasurement measurement;
  constexpr double kMib = 1024.0 * 1024;
  measurement.runtime = {{4, 1000 * kMib}, {1, 600 * kMib}, {2, 800 * kMib}};
  const HardwareProfile profile = Read(measurement);
  const auto mib = [&](int world_size) {
    return static_cast<double>(RuntimeBytes(profile, world_size)) / kMib;
  };
  // Four digits of GiB.
  CHECK(mib(1) == doctest::Approx(600).epsilon(1e-3));
  CHECK(mib(2) == doctest::Approx(800).epsilon(1e-3));
  CHECK(mib(4) == doctest::Approx(1000).epsilon(1e-3));
  CHECK(mib(3) > mib(2));
  CHECK(mib(3) < mib(4));
  CHECK(mib(8) == mib(4));
}

}  // namespace
}  // namespace zeroplan
