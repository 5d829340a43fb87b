#include "cost_models/host_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "cost_models/calibration.h"

namespace zeroplan {
namespace {

// Moved over counted, where what is overwritten is fetched: the triad reads two floats and writes
// one; the conversion of the rows (executor/measure/measure_host.h) reads bf16 and writes fp32.
constexpr double kTriadMoved = 16.0 / 12, kConvertRowMoved = 10.0 / 6;

std::optional<Measured<NamedKernelTime>> WithFetched(
    std::optional<Measured<NamedKernelTime>> kernels) {
  if (!kernels) return kernels;
  for (NamedKernelTime& row : kernels->rows) {
    if (row.kernel == KernelId::kConvert) row.bytes *= kConvertRowMoved;
  }
  return kernels;
}

// Nanoseconds and bytes of a parameter, as benchmarks/adamw_benchmark prints them.
struct StatesRow {
  Dtype master, moments;
  double ns, bytes;
};
constexpr StatesRow kFp32 = {Dtype::kF32, Dtype::kF32, 0.208, 28};
constexpr StatesRow kLight[] = {
    {Dtype::kF32, Dtype::kBF16, 0.175, 20},       {Dtype::kF32, Dtype::kDynamic8, 0.193, 16.1},
    {Dtype::kI16, Dtype::kF32, 0.184, 26},        {Dtype::kI16, Dtype::kBF16, 0.172, 18},
    {Dtype::kI16, Dtype::kDynamic8, 0.211, 14.1}, {Dtype::kBF16, Dtype::kF32, 0.177, 22},
    {Dtype::kBF16, Dtype::kBF16, 0.148, 14},      {Dtype::kBF16, Dtype::kDynamic8, 0.235, 10.1},
    {Dtype::kF16, Dtype::kF32, 0.169, 22},        {Dtype::kF16, Dtype::kBF16, 0.168, 14},
    {Dtype::kF16, Dtype::kDynamic8, 0.259, 10.1}};

// Null for fp32 states.
const StatesRow* RowOf(Dtype master, Dtype moments) {
  const auto* row = std::find_if(std::begin(kLight), std::end(kLight), [&](const StatesRow& of) {
    return of.master == master && of.moments == moments;
  });
  return row == std::end(kLight) ? nullptr : row;
}

}  // namespace

double HostUpdateWork(Dtype master, Dtype moments) {
  const StatesRow* row = RowOf(master, moments);
  return row == nullptr ? 1 : std::max(1.0, (row->ns / row->bytes) / (kFp32.ns / kFp32.bytes));
}

double HostCost::UpdateWork(Dtype master, Dtype moments) const {
  const StatesRow* row = RowOf(master, moments);
  if (row == nullptr || adam_ <= 0) return HostUpdateWork(master, moments);
  // Arithmetic of fp16 is that of bf16.
  const Dtype kind = master == Dtype::kF16 ? Dtype::kBF16 : master;
  const auto own = std::find_if(light_.begin(), light_.end(), [&](const LightUpdate& update) {
    return update.masters == kind && update.moments == moments;
  });
  if (own == light_.end()) return HostUpdateWork(master, moments);
  constexpr double kParameters = 1e9;
  return own->seconds / (kParameters * row->bytes / (adam_ * ranks_));
}

HostCost::HostCost(const HardwareProfile& profile, int ranks_per_node)
    : kernels_(WithFetched(profile.node.host_kernels)),
      ranks_(ranks_per_node),
      source_(profile.source.empty() ? profile.name : profile.source) {
  const NodeProfile& node = profile.node;
  const auto& adam = node.adam_bandwidth ? node.adam_bandwidth : node.triad_bandwidth;
  const auto& triad = node.triad_bandwidth ? node.triad_bandwidth : node.adam_bandwidth;
  if (node.light_updates) light_ = node.light_updates->rows;
  if (profile.node.host_updates) updates_ = profile.node.host_updates->rows;
  std::sort(updates_.begin(), updates_.end(),
            [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  if (adam) adam_ = adam->value / ranks_per_node;
  if (triad) triad_ = triad->value / ranks_per_node;
}

double HostCost::Share(double bandwidth) const {
  if (bandwidth <= 0) {
    ThrowUsage(
        "{}: host.triad_bandwidth and host.adam_bandwidth are missing, so work on the host "
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
  const double moved = kernel == KernelId::kConvert ? kTriadMoved : 1;
  return bytes / (moved * Share(adam ? adam_ : triad_)) / speedup;
}

double HostCost::BytesPerSecond() const {
  double fastest = 1;
  for (const MemoryKernelTime& row : updates_)
    fastest = std::max(fastest, UpdateSpeedup(row.bytes));
  const double best = fastest * std::max({adam_, triad_, kernels_.BytesPerSecond() / ranks_});
  return best > 0 ? best : std::numeric_limits<double>::infinity();
}

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

namespace {

// One request: the read latency that data sheets of flash drives give (60 to 100 us). Not measured;
// swapped pieces are of megabytes, which take far longer.
constexpr double kLatencySeconds = 100e-6;

}  // namespace

StorageCost::StorageCost(const HardwareProfile& profile, int ranks_per_node)
    : source_(profile.source.empty() ? profile.name : profile.source) {
  if (profile.node.nvme_read) read_ = profile.node.nvme_read->value / ranks_per_node;
  if (profile.node.nvme_write) write_ = profile.node.nvme_write->value / ranks_per_node;
}

double StorageCost::Seconds(bool write, double bytes) const {
  const double bandwidth = write ? write_ : read_;
  if (bandwidth <= 0) {
    ThrowUsage(
        "{}: node.nvme_{} is missing, so files cannot be timed; add the bandwidth of the "
        "node's disks, or choose offload to \"cpu\" or none",
        source_, write ? "write" : "read");
  }
  return kLatencySeconds + bytes / bandwidth;
}

double StorageCost::BytesPerSecond(bool write) const {
  const double bandwidth = write ? write_ : read_;
  return bandwidth > 0 ? bandwidth : std::numeric_limits<double>::infinity();
}

}  // namespace zeroplan
