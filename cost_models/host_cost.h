// Seconds of a kernel on the host: it is bound by host memory, which the ranks of a node share.
#pragma once

#include <string>
#include <vector>

#include "core/program/kernel.h"
#include "cost_models/kernel_times.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// By the kernel's own measured rows, all ranks of the node together as one call of all their bytes,
// or else
//
//   t = bytes read and written * ranks of the node / bandwidth
//
// AdamW: the bandwidth of an Adam-shaped loop, all else the STREAM triad's (McCalpin 1995); where
// the profile has only one of them, that one. Source: ZeRO-Offload, arXiv 2101.06840, section 4.3
// (the host optimizer is memory-bound).
class HostCost {
 public:
  HostCost(const HardwareProfile& profile, int ranks_per_node);

  // Both throw Error(kUsage) naming node.triad_bandwidth if the profile has no figure for it.
  // `state_bytes`: what one rank's update walks over, 16 bytes a parameter; read where
  // StatesMatter.
  double Seconds(KernelId kernel, double bytes, double state_bytes) const;
  bool StatesMatter(KernelId kernel) const;
  double CopySeconds(double bytes) const { return bytes / Share(triad_); }
  // The fastest of all, one rank's share; infinite if not known (nothing to bound).
  double BytesPerSecond() const;

 private:
  double Share(double bandwidth) const;
  // How much faster AdamW is over states of that size than over large ones, at least 1.
  double UpdateSpeedup(double state_bytes) const;
  KernelTimes kernels_;
  std::vector<MemoryKernelTime> updates_;
  double ranks_ = 1;
  double adam_ = 0, triad_ = 0;  // one rank's; 0: not known
  std::string source_;
};

}  // namespace zeroplan
