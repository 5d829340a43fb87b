// Seconds of every instruction of a step program, alone on its stream. One facade over the cost
// functions, which live in a file each:
//
//   gemm_cost, attention_cost, memory_cost    kernels on the GPU
//   power_limit                               the clock they run at
//   collective_cost                           rings, over nodes trees too; the slowest rank
//   transfer_cost                             PCIe, one GPU alone and all of a host at once
//   host_cost, storage_cost                   host optimizer and conversions, NVMe
//
// What runs at the same time and shares a resource is the Timeline's business.
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
  // Fits what the profile's measurements allow (Eigen least squares). REQUIRES: a loaded profile.
  // `gpu_link_scale`: as if the links between a node's GPUs were that many times as fast.
  CostModel(const HardwareProfile& profile, const ClusterShape& shape, double gpu_link_scale = 1);
  ~CostModel();
  CostModel(CostModel&&) noexcept;
  CostModel& operator=(CostModel&&) noexcept;

  // Seconds of one instruction of `program` (lowered for as many ranks as the shape has GPUs),
  // launch included, at the GPU's top clock. Alloc, Free, RecordEvent, WaitEvent: 0. Remembers
  // kernels it has seen: not for several threads at once.
  double Seconds(const Program& program, const Instruction& instruction) const {
    return CostOf(program, instruction).seconds;
  }
  struct InstructionCost {
    double seconds = 0;
    // The share (0 to 1] of its speed that a kernel of the GPU keeps while a collective runs beside
    // it; 1 for other instructions. At most overlap().compute_beside_collective.
    double beside_collective = 1;
    GpuWork work;  // its seconds() are the same; clocked and with joules for kernels of the GPU
  };
  InstructionCost CostOf(const Program& program, const Instruction& instruction) const;

  // The clock, as a share of the GPU's top one, that such work done over and over keeps within the
  // power limit; a kernel's seconds are those at 1.
  double Clock(const GpuWork& work) const;
  // What an event between two kernels of the compute stream costs.
  double EventSeconds() const;
  // As collective_cost's, of the shape.
  double SlowestRank() const;

  const OverlapRates& overlap() const;
  const ClusterShape& shape() const;
  // Seconds of a collective over `full_bytes` at least, as CollectiveTime counts them. Per byte
  // they never rise with the bytes.
  double CollectiveSeconds(CollectiveOp op, double full_bytes) const;
  // What collectives over one axis of the ranks cost (CollectiveCost::Over).
  CollectiveCost CollectivesOver(const RankAxes& axes, RankAxis axis) const;
  // Bytes per second of plain ratios that bounds use: never exceeded by what Seconds() implies.
  double CollectiveBytesPerSecond() const;  // sent by one rank
  double PcieBytesPerSecond() const;        // one direction of one GPU's link, as many copying
  double HbmBytesPerSecond() const;
  // Of one rank's update or norm on the host, all of the host's ranks busy.
  double HostBytesPerSecond() const;
  double StorageReadBytesPerSecond() const, StorageWriteBytesPerSecond() const;  // one rank's share
  double DensePeak(Dtype dtype) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroplan
