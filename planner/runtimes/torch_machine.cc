#include "planner/runtimes/torch_machine.h"

namespace zeroplan {
namespace {

double Value(const std::optional<Figure>& figure, double otherwise) {
  return figure ? figure->value : otherwise;
}

}  // namespace

TorchMachine::TorchMachine(const HardwareProfile& profile, const ClusterShape& cluster,
                           double gpu_link_scale)
    : shape(cluster),
      power(profile.gpu),
      gemm(profile.gpu),
      attention(profile.gpu, gemm),
      memory(profile.gpu),
      collectives(profile, cluster, gpu_link_scale),
      transfers(profile, cluster.ranks_per_node()),
      launch_seconds(profile.gpu.launch_overhead.value),
      compute_beside_collective(Value(profile.node.overlapped_compute, 1)),
      collective_beside_compute(Value(profile.node.overlapped_collective, 0.66)) {
  const auto& node = profile.node;
  const double known = Value(node.adam_bandwidth, Value(node.triad_bandwidth, 0));
  host_bytes_per_second = known / cluster.ranks_per_node();
}

std::string TorchMachineLacks(const HardwareProfile& profile, const ClusterShape& cluster) {
  if (cluster.nodes() > 1 && !profile.network) return "network.bandwidth_per_node";
  return "";
}

}  // namespace zeroplan
