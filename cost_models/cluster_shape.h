// The number of GPUs, and the number that share a host.
#pragma once

namespace zeroplan {

struct ClusterShape {
  int gpus = 1;
  int gpus_per_node = 1;

  int ranks_per_node() const { return gpus < gpus_per_node ? gpus : gpus_per_node; }
  int nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
  // The shape of a group of `ranks` GPUs at distance `apart` (RankAxes::Apart).
  ClusterShape OfGroup(int ranks, int apart) const {
    const int on_a_node = ranks_per_node() / apart;
    return {ranks, on_a_node > 1 ? on_a_node : 1};
  }
};

}  // namespace zeroplan
