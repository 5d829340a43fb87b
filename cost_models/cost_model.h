// Seconds of every instruction of a step program, alone on its stream. A facade over the cost
// functions, which are in a file each:
//
//   gemm_cost, attention_cost, memory_cost    kernels on the GPU
//   power_limit                               the clock they run at
//   collective_cost                           rings, over nodes trees too; the slowest rank
//   transfer_cost                             PCIe, one GPU alone and all of a host at once
//   host_cost, storage_cost                   host optimizer and conversions, NVMe
//
// Timeline models concurrent instructions that share a resource.
#pragma once

#include <memory>

#include "core/program/program.h"
#include "cost_models/cluster_shape.h"
#include "cost_models/collective_cost.h"
#include "cost_models/power_limit.h"
#include "cost_models/timeline.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

class CostModel {
 public:
  // Fits the profile's measurements (Eigen least squares). REQUIRES: a loaded profile.
  // `gpu_link_scale`: multiplies the speed of the links between a node's GPUs.
  CostModel(const HardwareProfile& profile, const ClusterShape& shape, double gpu_link_scale = 1);
  ~CostModel();
  CostModel(CostModel&&) noexcept;
  CostModel& operator=(CostModel&&) noexcept;

  // Seconds of one instruction of `program` (lowered for as many ranks as the shape has GPUs),
  // launch included, at the GPU's top clock. Alloc, Free, RecordEvent, WaitEvent: 0. Caches
  // kernels: not for several threads at once.
  double Seconds(const Program& program, const Instruction& instruction) const {
    return CostOf(program, instruction).seconds;
  }
  struct InstructionCost {
    double seconds = 0;
    // The share (0 to 1] of its speed that a GPU kernel keeps while a collective runs concurrently;
    // 1 for other instructions. At most overlap().compute_beside_collective.
    double beside_collective = 1;
    // its seconds() equal `seconds`; for GPU kernels it is split by clock and has joules
    GpuWork work;
  };
  InstructionCost CostOf(const Program& program, const Instruction& instruction) const;

  // The clock, as a share of the GPU's top one, at which the GPU can repeat that work within the
  // power limit; a kernel's seconds are those at 1.
  double Clock(const GpuWork& work) const;
  // The cost of an event between two kernels of the compute stream.
  double EventSeconds() const;
  // collective_cost's SlowestRank for the shape.
  double SlowestRank() const;

  const OverlapRates& overlap() const;
  const ClusterShape& shape() const;
  // A lower bound on the seconds of a collective over `full_bytes`, as in CollectiveTime. Its
  // seconds per byte never rise with the bytes.
  double CollectiveSeconds(CollectiveOp op, double full_bytes) const;
  // The costs of collectives over one axis of the ranks (CollectiveCost::Over).
  CollectiveCost CollectivesOver(const RankAxes& axes, RankAxis axis) const;
  // Bytes per second that bounds use as plain ratios: at least those that Seconds() implies.
  double CollectiveBytesPerSecond() const;  // sent by one rank
  // one direction of one GPU's link, as many GPUs copying as a host has
  double PcieBytesPerSecond() const;
  double HbmBytesPerSecond() const;
  // One rank's update or norm on the host, with all of the host's ranks busy.
  double HostBytesPerSecond() const;
  // As HostCost::UpdateWork.
  double HostUpdateWork(Dtype master, Dtype moments) const;
  double StorageReadBytesPerSecond() const, StorageWriteBytesPerSecond() const;  // one rank's share
  double DensePeak(Dtype dtype) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroplan
