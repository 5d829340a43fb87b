#include "cost_models/transfer_cost.h"

#include <algorithm>
#include <vector>

#include "cost_models/calibration.h"

namespace zeroplan {
namespace {

// Without copies by size: the H200's fitted start.
constexpr double kStartSeconds = 3.2e-6;
// What one host thread copies, where the profile does not say less. Assumed, not measured: the
// driver stages with one thread, whose loads and stores are bound by memory latency.
constexpr double kThreadCopyBytesPerSecond = 10e9;

}  // namespace

TransferCost::Direction TransferCost::Fit(const PcieProfile& pcie, bool to_device,
                                          int ranks) const {
  Direction direction;
  direction.start_seconds = kStartSeconds;
  direction.seconds_per_byte =
      1 / (to_device ? pcie.to_device_single : pcie.from_device_single).value;
  if (pcie.copies && pcie.copies->rows.size() >= 2) {
    std::vector<FitRow> rows;
    for (const CopyTime& row : pcie.copies->rows) {
      rows.push_back({{1, row.bytes}, to_device ? row.to_device_seconds : row.from_device_seconds});
    }
    const std::vector<double> fitted = FitRelative(rows);
    if (fitted[1] > 0) direction = {fitted[0], fitted[1]};
  }
  const auto& all = to_device ? pcie.to_device_all : pcie.from_device_all;
  if (all && ranks > 1) {
    direction.seconds_per_byte = std::max(direction.seconds_per_byte, ranks / all->value);
  }
  return direction;
}

TransferCost::TransferCost(const HardwareProfile& profile, int ranks_per_node) {
  const PcieProfile& pcie = profile.node.pcie;
  to_device_ = Fit(pcie, true, ranks_per_node);
  from_device_ = Fit(pcie, false, ranks_per_node);
  double both = pcie.both_single.value;
  if (pcie.both_all && ranks_per_node > 1) {
    both = std::min(both, pcie.both_all->value / ranks_per_node);
  }
  const double alone = BytesPerSecond(true) + BytesPerSecond(false);
  both_share_ = both > 0 ? std::min(1.0, both / alone) : 1;
  double staging = kThreadCopyBytesPerSecond;
  if (profile.node.triad_bandwidth) {  // a byte copied is one read and one written
    staging = std::min(staging, profile.node.triad_bandwidth->value / 2 / ranks_per_node);
  }
  staging_seconds_per_byte_ = 1 / staging;
}

double TransferCost::Seconds(bool to_device, double bytes, bool pageable) const {
  const Direction& direction = to_device ? to_device_ : from_device_;
  return direction.start_seconds + bytes * direction.seconds_per_byte +
         (pageable ? bytes * staging_seconds_per_byte_ : 0);
}

}  // namespace zeroplan
