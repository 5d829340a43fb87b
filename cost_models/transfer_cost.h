// Seconds of a copy between host memory and one GPU.
#pragma once

#include "hwprofiles/profile.h"

namespace zeroplan {

// t = start + bytes / min(one GPU alone, all GPUs of the host together / ranks), with `ranks` GPUs
// of the host copying at once, as data-parallel ranks do. start and the rate alone are fitted to
// the copies by size where the profile has them (Hockney 1994). Pageable memory is staged through a
// pinned buffer by the CPU (CUDA C++ Programming Guide, "Page-Locked Host Memory"): the bytes are
// copied twice, one after the other, at the host's copy speed and at PCIe's.
class TransferCost {
 public:
  TransferCost(const HardwareProfile& profile, int ranks_per_node);

  double Seconds(bool to_device, double bytes, bool pageable) const;
  double BytesPerSecond(bool to_device) const {
    return 1 / (to_device ? to_device_ : from_device_).seconds_per_byte;
  }
  // What each direction keeps of its speed while both are busy, (0, 1].
  double BothShare() const { return both_share_; }

 private:
  struct Direction {
    double start_seconds = 0, seconds_per_byte = 0;
  };
  Direction Fit(const PcieProfile& pcie, bool to_device, int ranks) const;

  Direction to_device_, from_device_;
  double both_share_ = 1;
  double staging_seconds_per_byte_ = 0;
};

}  // namespace zeroplan
