#include "cost_models/memory_cost.h"

#include <algorithm>
#include <vector>

#include "cost_models/calibration.h"

namespace zeroplan {
namespace {

// A row at most this much above the fastest one is taken for the cost of a call, not of memory.
constexpr double kFloorMargin = 1.25;
// What a call takes at most, in launches: in a graph, the shortest of an H200 take 1.4 to 6 us.
constexpr double kLaunchesOfMemoryCall = 3;

}  // namespace

MemoryCost::MemoryCost(const GpuProfile& gpu) : kernels_(gpu.kernels) {
  const double bandwidth =
      gpu.copy_bandwidth ? gpu.copy_bandwidth->value : kCopyShare * gpu.hbm_bandwidth.value;
  launch_seconds_ = gpu.launch_overhead.value;
  seconds_per_byte_ = 1 / bandwidth;
  floor_seconds_ = launch_seconds_;
  std::vector<MemoryKernelTime> rows;
  if (gpu.kernels) {
    for (const NamedKernelTime& row : gpu.kernels->rows) rows.push_back({row.bytes, row.seconds});
  } else if (gpu.memory_kernels) {
    rows = gpu.memory_kernels->rows;
  }
  if (rows.empty()) return;

  floor_seconds_ = rows.front().seconds;
  for (const MemoryKernelTime& row : rows) floor_seconds_ = std::min(floor_seconds_, row.seconds);
  std::vector<FitRow> fit;
  for (const MemoryKernelTime& row : rows) {
    if (row.seconds > kFloorMargin * floor_seconds_) fit.push_back({{1, row.bytes}, row.seconds});
  }
  floor_seconds_ = std::min(floor_seconds_, kLaunchesOfMemoryCall * gpu.launch_overhead.value);
  if (fit.size() < 2) return;
  const std::vector<double> fitted = FitRelative(fit);
  if (fitted[1] <= 0) return;
  launch_seconds_ = fitted[0];
  seconds_per_byte_ = fitted[1];
}

}  // namespace zeroplan
