#include "planner/runtimes/torch_machine.h"

namespace zeroplan {
namespace {

double Value(const std::optional<Figure>& figure, double otherwise) {
  return figure ? figure->value : otherwise;
}

}  // namespace

TorchMachine::TorchMachine(const HardwareProfile& profile, const ClusterShape& cluster)
    : shape(cluster),
      power(profile.gpu),
      gemm(profile.gpu),
      attention(profile.gpu, gemm),
      memory(profile.gpu),
      collectives(profile, cluster),
      transfers(profile, cluster.ranks_per_node()),
      launch_seconds(profile.gpu.launch_overhead.value),
      compute_beside_collective(Value(profile.node.overlapped_compute, 1)),
      collective_beside_compute(Value(profile.node.overlapped_collective, 0.66)) {
  const auto& node = profile.node;
  const double triad = Value(node.triad_bandwidth, Value(node.adam_bandwidth, 0));
  const double adam = Value(node.adam_bandwidth, triad);
  host_bytes_per_second = triad / cluster.ranks_per_node();
  host_adam_bytes_per_second = adam / cluster.ranks_per_node();
}

std::string TorchMachineLacks(const HardwareProfile& profile, const ClusterShape& cluster) {
  if (cluster.nodes() > 1 && !profile.network) return "network.bandwidth_per_node";
  return "";
}

}  // namespace zeroplan
