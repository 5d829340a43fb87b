#include "cost_models/memory_cost.h"

#include <algorithm>
#include <vector>

#include "cost_models/calibration.h"

namespace zeroplan {

KernelTimes::KernelTimes(const std::optional<Measured<NamedKernelTime>>& table) {
  if (!table) return;
  for (const NamedKernelTime& row : table->rows) {
    points_[static_cast<size_t>(row.kernel)].push_back({row.bytes, row.seconds});
  }
  for (std::vector<Point>& points : points_) {
    std::sort(points.begin(), points.end(),
              [](const Point& a, const Point& b) { return a.bytes < b.bytes; });
    // More bytes never take less: where noise says so, as long.
    for (size_t i = 1; i < points.size(); ++i) {
      points[i].seconds = std::max(points[i].seconds, points[i - 1].seconds);
    }
    if (points.size() < 2) points.clear();
    for (const Point& point : points) fastest_ = std::max(fastest_, point.bytes / point.seconds);
  }
}

std::optional<double> KernelTimes::Seconds(KernelId kernel, double bytes) const {
  const std::vector<Point>& points = points_[static_cast<size_t>(kernel)];
  if (points.empty()) return std::nullopt;
  if (bytes <= points.front().bytes) return points.front().seconds;
  const auto next = std::find_if(points.begin(), points.end(),
                                 [&](const Point& point) { return point.bytes >= bytes; });
  if (next == points.end()) return points.back().seconds * (bytes / points.back().bytes);
  const Point& before = *(next - 1);
  const double share = (bytes - before.bytes) / (next->bytes - before.bytes);
  return before.seconds + share * (next->seconds - before.seconds);
}

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
