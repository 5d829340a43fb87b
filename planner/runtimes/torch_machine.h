// What a profile says of the machine that a PyTorch process runs on.
#pragma once

#include <optional>
#include <string>

#include "cost_models/attention_cost.h"
#include "cost_models/cluster_shape.h"
#include "cost_models/collective_cost.h"
#include "cost_models/gemm_cost.h"
#include "cost_models/host_cost.h"
#include "cost_models/memory_cost.h"
#include "cost_models/power_limit.h"
#include "hwprofiles/profile.h"

namespace zeroplan {

// Made once for many choices. REQUIRES: TorchMachineLacks(...) is empty.
struct TorchMachine {
  // `gpu_link_scale`: as CostModel has it.
  TorchMachine(const HardwareProfile& profile, const ClusterShape& cluster,
               double gpu_link_scale = 1);

  ClusterShape shape;
  PowerLimit power;
  GemmCost gemm;
  AttentionCost attention;
  MemoryCost memory;
  CollectiveCost collectives;
  TransferCost transfers;
  double launch_seconds;  // from one kernel's end to the next one's begin
  double compute_beside_collective, collective_beside_compute;
  double host_bytes_per_second;  // of the host's memory, one rank's share; 0: not known
};

// What the profile lacks to time a runtime on such a cluster: "network.bandwidth_per_node"; empty:
// nothing.
std::string TorchMachineLacks(const HardwareProfile& profile, const ClusterShape& cluster);

}  // namespace zeroplan
