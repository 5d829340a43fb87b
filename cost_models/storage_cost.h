// Seconds of reads and writes of a rank's files.
#pragma once

#include <string>

#include "hwprofiles/profile.h"

namespace zeroplan {

// t = latency + bytes * ranks of the node / bandwidth: the ranks of a node share its disks, and
// swap at the same time. Source: ZeRO-Infinity, arXiv 2104.07857, section 5.2 (transfers large
// enough to reach the device's bandwidth).
class StorageCost {
 public:
  StorageCost(const HardwareProfile& profile, int ranks_per_node);

  // Throws Error(kUsage) naming node.nvme_read or node.nvme_write if the profile lacks it.
  double Seconds(bool write, double bytes) const;
  double BytesPerSecond(bool write) const;  // one rank's share; infinite if not known

 private:
  double read_ = 0, write_ = 0;  // one rank's; 0: not known
  std::string source_;
};

}  // namespace zeroplan
