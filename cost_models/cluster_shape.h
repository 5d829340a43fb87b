// How many GPUs take part, and how many of them share a host.
#pragma once

namespace zeroplan {

struct ClusterShape {
  int gpus = 1;
  int gpus_per_node = 1;

  int ranks_per_node() const { return gpus < gpus_per_node ? gpus : gpus_per_node; }
  int nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
};

}  // namespace zeroplan
