#include "cost_models/host_cost.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "core/base/error.h"

namespace zeroplan {

HostCost::HostCost(const HardwareProfile& profile, int ranks_per_node)
    : kernels_(profile.node.host_kernels),
      ranks_(ranks_per_node),
      source_(profile.source.empty() ? profile.name : profile.source) {
  const NodeProfile& node = profile.node;
  const auto& adam = node.adam_bandwidth ? node.adam_bandwidth : node.triad_bandwidth;
  const auto& triad = node.triad_bandwidth ? node.triad_bandwidth : node.adam_bandwidth;
  if (adam) adam_ = adam->value / ranks_per_node;
  if (triad) triad_ = triad->value / ranks_per_node;
}

double HostCost::Share(double bandwidth) const {
  if (bandwidth <= 0) {
    ThrowUsage(
        "{}: node.triad_bandwidth and node.adam_bandwidth are missing, so work on the host "
        "cannot be timed; add one of them (STREAM triad of all cores), or choose no offload",
        source_);
  }
  return bandwidth;
}

double HostCost::Seconds(KernelId kernel, double bytes) const {
  if (const std::optional<double> own = kernels_.Seconds(kernel, bytes * ranks_)) return *own;
  const bool adam = KernelInfo(kernel).cost == CostKind::kAdam;
  return bytes / Share(adam ? adam_ : triad_);
}

double HostCost::BytesPerSecond() const {
  const double best = std::max({adam_, triad_, kernels_.BytesPerSecond() / ranks_});
  return best > 0 ? best : std::numeric_limits<double>::infinity();
}

}  // namespace zeroplan
