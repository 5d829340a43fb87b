#include "cost_models/host_cost.h"

#include <algorithm>
#include <cmath>
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
  if (profile.node.host_updates) updates_ = profile.node.host_updates->rows;
  std::sort(updates_.begin(), updates_.end(),
            [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
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

double HostCost::UpdateSpeedup(double state_bytes) const {
  const auto rate = [](const MemoryKernelTime& row) { return row.bytes / row.seconds; };
  const double slowest = rate(updates_.back());
  const auto next = std::find_if(updates_.begin(), updates_.end(),
                                 [&](const auto& row) { return row.bytes >= state_bytes; });
  if (next == updates_.end()) return 1;
  double here = rate(*next);
  if (next != updates_.begin()) {
    const auto& before = *(next - 1);
    const double share =
        std::log(state_bytes / before.bytes) / std::log(next->bytes / before.bytes);
    here = rate(before) + share * (here - rate(before));
  }
  return std::max(1.0, here / slowest);
}

bool HostCost::StatesMatter(KernelId kernel) const {
  return updates_.size() > 1 && KernelInfo(kernel).cost == CostKind::kAdam;
}

double HostCost::Seconds(KernelId kernel, double bytes, double state_bytes) const {
  const bool adam = KernelInfo(kernel).cost == CostKind::kAdam;
  const double speedup = StatesMatter(kernel) ? UpdateSpeedup(state_bytes * ranks_) : 1;
  if (const std::optional<double> own = kernels_.Seconds(kernel, bytes * ranks_)) {
    return *own / speedup;
  }
  return bytes / Share(adam ? adam_ : triad_) / speedup;
}

double HostCost::BytesPerSecond() const {
  double fastest = 1;
  for (const MemoryKernelTime& row : updates_)
    fastest = std::max(fastest, UpdateSpeedup(row.bytes));
  const double best = fastest * std::max({adam_, triad_, kernels_.BytesPerSecond() / ranks_});
  return best > 0 ? best : std::numeric_limits<double>::infinity();
}

}  // namespace zeroplan
