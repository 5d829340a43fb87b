#include "cost_models/kernel_times.h"

#include <algorithm>

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

}  // namespace zeroplan
