// hw measure's GPU half on one GPU, shortened: what it finds is possible, and nothing stays behind.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "executor/device/cuda/cuda_handles.h"
#include "executor/measure/measure_device.h"
#include "executor/process/process_group.h"

namespace zeroplan {
namespace {

double FreeBytes() {
  size_t free_bytes = 0, total_bytes = 0;
  ZEROPLAN_CUDA(cudaDeviceSynchronize());
  ZEROPLAN_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<double>(free_bytes);
}

MachineMeasurement MeasureQuickly(const DeviceParts& parts) {
  SingleProcess alone;
  DeviceMeasureOptions options{.parts = parts, .quick = true};
  std::string said;
  options.progress = [&](const std::string& line) { said += line + "\n"; };
  MachineMeasurement result;
  MeasureDevice(alone, options, result);
  CAPTURE(said);
  for (const FailedPart& part : result.failed) {
    FAIL_CHECK("measuring " << part.name << " failed: " << part.why);
  }
  CHECK(said.find(" s\n") != std::string::npos);
  return result;
}

void CheckBetween(double value, double least, double most, const char* what) {
  CAPTURE(what);
  CHECK(std::isfinite(value));
  CHECK(value >= least);
  CHECK(value <= most);
}

// Bounds hold for any GPU of the last ten years: they catch units, empty timings and host time.

TEST_CASE("gpu hw measure: kernels that move memory") {
  const MachineMeasurement m = MeasureQuickly({.memory = true});
  REQUIRE(m.device.has_value());
  REQUIRE(m.kernels.launch_seconds.has_value());
  CheckBetween(*m.kernels.launch_seconds, 0.3e-6, 10e-6, "a launch");
  REQUIRE(m.kernels.copy_bandwidth.has_value());
  CheckBetween(*m.kernels.copy_bandwidth, 100e9, 20e12, "a copy within the GPU");
  REQUIRE(m.kernels.memory.size() >= 10);
  for (const NamedKernelTime& row : m.kernels.memory) {
    CAPTURE(row.bytes);
    // No kernel is faster than the copy by more than caches and rounding give small ones.
    if (row.bytes > 256e6) {
      CheckBetween(row.bytes / row.seconds, 0.2 * *m.kernels.copy_bandwidth,
                   1.2 * *m.kernels.copy_bandwidth, "a kernel that moves memory");
    }
    CheckBetween(row.seconds, 0.3e-6, 1, "a kernel's time");
  }
}

TEST_CASE("gpu hw measure: power") {
  const MachineMeasurement m = MeasureQuickly({.memory = true, .power = true});
  REQUIRE(m.kernels.power.has_value());
  const PowerRates& power = *m.kernels.power;
  CheckBetween(power.base_watts, 5, 500, "busy with nothing");
  CheckBetween(power.limit_watts, power.base_watts, 2000, "the limit");
  CheckBetween(power.joules_per_flop, 0.05e-12, 20e-12, "a FLOP");
  CheckBetween(power.joules_per_byte, 1e-12, 1e-9, "a byte");
  CheckBetween(power.clocked_share, 0.01, 1, "the clocked share");
}

TEST_CASE("gpu hw measure: copies between host and GPU") {
  const MachineMeasurement m = MeasureQuickly({.pcie = true});
  REQUIRE(m.pcie.has_value());
  const CopyRates& rates = m.pcie->single;
  CheckBetween(rates.to_device, 1e9, 1e12, "to the GPU");
  CheckBetween(rates.from_device, 1e9, 1e12, "from the GPU");
  CheckBetween(rates.both, 0.8 * std::max(rates.to_device, rates.from_device),
               1.1 * (rates.to_device + rates.from_device), "both ways");
  CHECK_FALSE(m.pcie->all.has_value());
  for (size_t i = 1; i < m.pcie->copies.size(); ++i) {
    CHECK(m.pcie->copies[i].to_device_seconds > m.pcie->copies[i - 1].to_device_seconds);
    CHECK(m.pcie->copies[i].from_device_seconds > m.pcie->copies[i - 1].from_device_seconds);
  }
}

TEST_CASE("gpu hw measure: memory outside the arenas, and none that stays") {
  const MachineMeasurement first = MeasureQuickly({.runtime = true, .memory = true, .pcie = true});
  REQUIRE(first.runtime.size() == 1);
  CHECK(first.runtime[0].world_size == 1);
  // A context takes some hundred megabytes; other tests and processes may have left more.
  CheckBetween(first.runtime[0].bytes, 100e6, 20e9, "outside the arenas");
  // By now everything is loaded that stays loaded.
  const double before = FreeBytes();
  const MachineMeasurement second = MeasureQuickly({.runtime = true, .memory = true, .pcie = true});
  CHECK(FreeBytes() >= before - 32e6);
  REQUIRE(second.runtime.size() == 1);
  CheckBetween(second.runtime[0].bytes, first.runtime[0].bytes - 256e6,
               first.runtime[0].bytes + 256e6, "outside the arenas, again");
}

}  // namespace
}  // namespace zeroplan
