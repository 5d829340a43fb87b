// Seconds of a kernel on the host: it is bound by host memory, which the ranks of a node share.
#pragma once

#include <string>
#include <vector>

#include "core/program/kernel.h"
#include "cost_models/memory_cost.h"
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
//
// A processor fetches a line of memory before it overwrites it (write allocate), which STREAM and
// the rows do not count. Conversions differ in it: one that adds has its destination read anyway.
// So their bytes here include what is fetched, and triad and rows are taken with theirs.
// How many times as long AdamW takes on a host as its bytes at the rate of fp32 states, where
// masters are kept in `master` (kI16: in two halves) and moments in `moments`: what light states
// save in memory traffic they take in arithmetic. Measured with 16 threads of a Xeon
// (docs/optimizer-states.md); hosts with more cores for their memory are faster.
double HostUpdateWork(Dtype master, Dtype moments);

class HostCost {
 public:
  HostCost(const HardwareProfile& profile, int ranks_per_node);

  // Both throw Error(kUsage) naming node.triad_bandwidth if the profile has no figure for it.
  // `bytes`: read and written, of kConvert also fetched.
  // `state_bytes`: what one rank's update walks over, 16 bytes a parameter; read where
  // StatesMatter.
  double Seconds(KernelId kernel, double bytes, double state_bytes) const;
  bool StatesMatter(KernelId kernel) const;
  double CopySeconds(double bytes) const { return bytes / Share(triad_); }
  // The fastest of all but conversions, one rank's share; infinite if not known (nothing to bound).
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

// Seconds of a copy between host memory and one GPU.
//
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

// Seconds of reads and writes of a rank's files.
//
// t = latency + bytes * ranks of the node / bandwidth: the ranks of a node share its disks, and
// swap at the same time. Source: ZeRO-Infinity, arXiv 2104.07857, section 5.2 (transfers large
// enough to reach the device's bandwidth).
class StorageCost {
 public:
  StorageCost(const HardwareProfile& profile, int ranks_per_node);

  // Throws Error(kUsage) naming node.nvme_read or node.nvme_write if the profile lacks it.
  double Seconds(bool write, double bytes) const;
  double BytesPerSecond(bool write) const;  // one rank's share; infinite if not known
  bool known() const { return read_ > 0 && write_ > 0; }

 private:
  double read_ = 0, write_ = 0;  // one rank's; 0: not known
  std::string source_;
};

}  // namespace zeroplan
