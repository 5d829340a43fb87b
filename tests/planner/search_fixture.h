// Searches over built-in hardware with chosen capacities.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/search/search.h"

namespace zeroplan {

class SearchFixture {
 public:
  SearchFixture(const std::string& model, int gpus, bool fewer_gpus = false,
                const std::string& hardware = std::string(kDefaultProfile))
      : SearchFixture(LoadModel(model), gpus, fewer_gpus, hardware) {}
  SearchFixture(const ModelSpec& model, int gpus, bool fewer_gpus = false,
                const std::string& hardware = std::string(kDefaultProfile))
      : profile(LoadProfile(hardware)) {
    inputs.model = model;
    inputs.base.batch.seq_len = inputs.model.positions;
    if (!profile.gpu.bf16) {
      inputs.base.precision.dtype = inputs.base.precision.grad_accum_dtype = Dtype::kF16;
    }
    inputs.lower.backend = Backend::kCuda;
    inputs.lower.flash_attention = profile.gpu.flash_attention;
    const int per_node = static_cast<int>(profile.node.gpus.value);
    inputs.space = DefaultSpace(inputs.model, gpus, per_node, fewer_gpus);
    AddClusters(per_node);
  }

  void Capacity(uint64_t gpu_bytes, uint64_t host_bytes = 0) {
    for (SearchCluster& c : inputs.clusters) {
      c.cluster.gpu_capacity_bytes = gpu_bytes;
      if (host_bytes > 0) c.cluster.host_capacity_bytes = host_bytes;
    }
  }

  HardwareProfile profile;
  SearchInputs inputs;

 private:
  void AddClusters(int per_node) {
    costs_.reserve(inputs.space.gpus.size());
    for (int gpus : inputs.space.gpus) {
      Cluster cluster;
      cluster.hardware = profile.name;
      cluster.gpu_name = profile.gpu.name;
      cluster.gpus = gpus;
      cluster.gpus_per_node = std::min(gpus, per_node);
      cluster.gpu_capacity_bytes = static_cast<uint64_t>(profile.gpu.usable_memory.value);
      cluster.host_capacity_bytes = static_cast<uint64_t>(profile.node.host_memory.value);
      cluster.runtime_bytes = RuntimeBytes(profile, gpus);
      cluster.communicator_bytes = CommunicatorBytes(profile, gpus);
      costs_.push_back(
          std::make_unique<CostModel>(profile, ClusterShape{gpus, cluster.gpus_per_node}));
      inputs.clusters.push_back({cluster, costs_.back().get()});
    }
  }

  std::vector<std::unique_ptr<CostModel>> costs_;
};

}  // namespace zeroplan
