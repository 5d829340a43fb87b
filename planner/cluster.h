// The machines that a model is planned for, reduced to the properties that decide whether it fits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cost_models/cluster_shape.h"

namespace zeroplan {

// The most GPUs that zeroplan plans for.
inline constexpr int64_t kMaxPlannedGpus = 1'000'000;

// Communicators included in a profile's figures: pure ZeRO's, of the streams `gather` and `reduce`.
inline constexpr int kProfiledCommunicators = 2;

struct Cluster {
  std::string hardware;  // name of the profile
  std::string gpu_name;
  // The options --network and --intra-node-bandwidth as given (hwprofiles/loader.h); empty: the
  // links are the profile's.
  std::string network, intra_node_bandwidth;
  std::string links;  // as text, for several GPUs: "300 GB/s each way between GPUs"
  // The option --nvme-drives; unset: rates and capacity are the profile's.
  std::optional<uint64_t> nvme_drives;
  int gpus = 1;
  int gpus_per_node = 1;
  uint64_t gpu_capacity_bytes = 0;
  std::optional<uint64_t> host_capacity_bytes;  // one host's; unset: unknown, not checked
  // The part of it that the GPUs' driver can page-lock; unset: no limit is known.
  std::optional<uint64_t> pinned_limit_bytes;
  std::optional<uint64_t> nvme_capacity_bytes;  // one node's
  // Device memory of one GPU outside the arenas, with kProfiledCommunicators; and the part of one
  // communicator. 0: unknown; then it counts whether the communicator is made or not.
  uint64_t runtime_bytes = 0, communicator_bytes = 0;
  // Bytes that stay free on a GPU and on a host: planner/footprint.h gives reasons and sizes.
  uint64_t gpu_reserve_bytes = 0, host_reserve_bytes = 0;

  ClusterShape shape() const { return {gpus, gpus_per_node}; }
  int ranks_per_node() const { return shape().ranks_per_node(); }
  int nodes() const { return shape().nodes(); }
};

}  // namespace zeroplan
