// Seconds of a kernel on the host: it is bound by host memory, which the ranks of a node share.
#pragma once

#include <string>
#include <vector>

#include "core/program/kernel.h"
#include "cost_models/memory_cost.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// AdamW's time on a host over the time of its bytes at the rate of fp32 states, for masters in
// `master` (kI16: in two halves) and moments in `moments`: light states need less memory traffic
// but more arithmetic. Measured with 16 threads of a Xeon (docs/optimizer-states.md); hosts with
// more cores for their memory are faster (host.light_updates).
double HostUpdateWork(Dtype master, Dtype moments);

// Uses the kernel's own measured rows, with all ranks of the node together as one call of all their
// bytes, or else
//
//   t = bytes read and written * ranks of the node / bandwidth
//
// The bandwidth is that of an Adam-shaped loop for AdamW, and the STREAM triad's (McCalpin 1995)
// for all else; if the profile has only one of them, that one. Source: ZeRO-Offload, arXiv
// 2101.06840, section 4.3 (the host optimizer is memory-bound).
//
// A processor fetches a line of memory before it overwrites it (write allocate), but STREAM and the
// rows do not count these fetches. Conversions differ: one that adds reads its destination anyway.
// So their bytes here include the fetches, and so do those of triad and rows.
class HostCost {
 public:
  HostCost(const HardwareProfile& profile, int ranks_per_node);

  // Both throw Error(kUsage) naming node.triad_bandwidth if the profile lacks it. `bytes`: read and
  // written, for kConvert also fetched. `state_bytes`: the states that one rank's update walks
  // over, 16 bytes a parameter; used if StatesMatter.
  double Seconds(KernelId kernel, double bytes, double state_bytes) const;
  bool StatesMatter(KernelId kernel) const;
  double CopySeconds(double bytes) const { return bytes / Share(triad_); }
  // HostUpdateWork on this host: of its own rows, if it has one for these states.
  double UpdateWork(Dtype master, Dtype moments) const;
  // The highest rate of all kernels but conversions, one rank's share; infinity if unknown (no
  // bound).
  double BytesPerSecond() const;

 private:
  double Share(double bandwidth) const;
  // The speedup of AdamW over states of that size relative to large ones, at least 1.
  double UpdateSpeedup(double state_bytes) const;
  KernelTimes kernels_;
  std::vector<MemoryKernelTime> updates_;
  double ranks_ = 1;
  double adam_ = 0, triad_ = 0;  // one rank's; 0: unknown
  std::vector<LightUpdate> light_;
  std::string source_;
};

// Seconds of a copy between host memory and one GPU.
//
// t = start + bytes / min(one GPU alone, all GPUs of the host together / ranks), with `ranks` GPUs
// of the host copying at once, as data-parallel ranks do. start and the rate of one GPU alone are
// fitted to the copies by size if the profile has them (Hockney 1994). The CPU stages pageable
// memory through a pinned buffer (CUDA C++ Programming Guide, "Page-Locked Host Memory"): the bytes
// are copied twice, one after the other, at the host's copy speed and at PCIe's.
class TransferCost {
 public:
  TransferCost(const HardwareProfile& profile, int ranks_per_node);

  double Seconds(bool to_device, double bytes, bool pageable) const;
  double BytesPerSecond(bool to_device) const {
    return 1 / (to_device ? to_device_ : from_device_).seconds_per_byte;
  }
  // The share of its speed that each direction keeps while both are busy, (0, 1].
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
// swap concurrently. Source: ZeRO-Infinity, arXiv 2104.07857, section 5.2 (transfers large enough
// to reach the device's bandwidth).
class StorageCost {
 public:
  StorageCost(const HardwareProfile& profile, int ranks_per_node);

  // Throws Error(kUsage) naming node.nvme_read or node.nvme_write if the profile lacks it.
  double Seconds(bool write, double bytes) const;
  double BytesPerSecond(bool write) const;  // one rank's share; infinity if unknown
  bool known() const { return read_ > 0 && write_ > 0; }

 private:
  double read_ = 0, write_ = 0;  // one rank's; 0: unknown
  std::string source_;
};

}  // namespace zeroplan
