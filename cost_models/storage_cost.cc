#include "cost_models/storage_cost.h"

#include <limits>

#include "core/base/error.h"

namespace zeroplan {
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
