#include "planner/estimate/estimate.h"

#include <algorithm>
#include <memory>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/program/bucket_sizes.h"
#include "cost_models/step_time.h"

namespace zeroplan {
namespace {

// "auto" prefetches one unit ahead, whatever its size: the largest says how much that may be.
uint64_t PrefetchElements(const Program& program) {
  const ZeroConfig& zero = program.setup.zero;
  if (zero.prefetch_bucket_elements != kAuto) return zero.prefetch_bucket_elements;
  uint64_t largest = 0;
  for (const Unit& unit : program.layout.units) {
    if (!unit.persistent) largest = std::max(largest, unit.param_elements);
  }
  return largest;
}

EffectiveSettings Effective(const Program& program) {
  const ZeroConfig& zero = program.setup.zero;
  return {ReduceBucketElements(program), PrefetchElements(program),
          zero.param_persistence_threshold, zero.max_reuse_distance, zero.overlap_comm};
}

TimeEstimate Times(const Program& program, const CostModel& costs) {
  const BatchSpec& batch = program.setup.batch;
  const StepTime time = StepTimer(costs).Time(program);
  const double tokens = static_cast<double>(batch.global_batch()) *
                        static_cast<double>(batch.seq_len) / time.total_seconds;
  TimeEstimate estimate;
  estimate.compute_seconds = time.compute_seconds;
  estimate.exposed_comm_seconds = time.exposed_comm_seconds;
  estimate.exposed_offload_seconds = time.exposed_offload_seconds;
  estimate.optimizer_seconds = time.optimizer_seconds;
  estimate.total_seconds = time.total_seconds;
  estimate.tokens_per_second = tokens;
  estimate.mfu = ModelFlopsUtilisation(program.model, batch.seq_len, tokens, batch.world_size,
                                       costs.DensePeak(program.setup.precision.dtype));
  estimate.by_stream = time.by_stream;
  return estimate;
}

std::string Shortage(const char* what, uint64_t needs, uint64_t has, const std::string& detail) {
  return fmt::format("{} short by {}: needs {}, has {}; {}", what, FormatBytes(needs - has),
                     FormatBytes(needs), FormatBytes(has), detail);
}

std::string LargestClass(const ChoiceEstimate& choice) {
  const std::pair<const char*, uint64_t> classes[] = {
      {"params", choice.memory.of(MemoryClass::kParams)},
      {"grads", choice.memory.of(MemoryClass::kGrads)},
      {"optimizer", choice.memory.of(MemoryClass::kOptimizer)},
      {"activations", choice.memory.of(MemoryClass::kActivations)},
      {"buffers", choice.memory.of(MemoryClass::kBuffers)},
      {"runtime", choice.runtime_bytes}};
  const auto* largest =
      std::max_element(std::begin(classes), std::end(classes),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return fmt::format("largest: {} {}", largest->first, FormatBytes(largest->second));
}

}  // namespace

ChoiceEstimate EstimateProgram(const Program& program, const Cluster& cluster,
                               const CostModel* costs) {
  const auto ranks = static_cast<uint64_t>(cluster.ranks_per_node());
  ChoiceEstimate choice;
  choice.setup = program.setup;
  choice.settings = Effective(program);
  choice.memory = WalkMemory(program);
  choice.traffic = WalkTraffic(program);
  choice.runtime_bytes = cluster.runtime_bytes;
  choice.gpu_total_bytes = choice.memory.arena(Space::kDevice) + cluster.runtime_bytes;
  choice.host.pinned = choice.memory.arena(Space::kPinned) * ranks;
  choice.host.pageable = choice.memory.arena(Space::kPageable) * ranks;
  choice.nvme_bytes = choice.memory.arena(Space::kFile) * ranks;
  if (costs != nullptr) choice.time = Times(program, *costs);
  choice.why_not = ExplainMisfit(choice, cluster);
  choice.fits = choice.why_not.empty();
  return choice;
}

std::string ExplainMisfit(const ChoiceEstimate& choice, const Cluster& cluster) {
  std::string why;
  auto add = [&](const std::string& clause) { why += (why.empty() ? "" : "; and ") + clause; };
  if (choice.gpu_total_bytes > cluster.gpu_capacity_bytes) {
    add(Shortage("GPU memory", choice.gpu_total_bytes, cluster.gpu_capacity_bytes,
                 LargestClass(choice)));
  }
  const std::string ranks = fmt::format("for {} GPU{} a node", cluster.ranks_per_node(),
                                        cluster.ranks_per_node() == 1 ? "" : "s");
  if (cluster.host_capacity_bytes && choice.host.total() > *cluster.host_capacity_bytes) {
    add(Shortage("host memory", choice.host.total(), *cluster.host_capacity_bytes,
                 fmt::format("{} pinned, {} pageable, {}", FormatBytes(choice.host.pinned),
                             FormatBytes(choice.host.pageable), ranks)));
  }
  if (cluster.nvme_capacity_bytes && choice.nvme_bytes > *cluster.nvme_capacity_bytes) {
    add(Shortage("NVMe", choice.nvme_bytes, *cluster.nvme_capacity_bytes, ranks));
  }
  return why;
}

Estimate EstimateChoices(const EstimateInputs& inputs) {
  ZEROPLAN_CHECK(!inputs.setups.empty());
  // The table of tensors depends on the model alone: all choices share it.
  const auto tensors =
      std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(inputs.model));
  Estimate estimate;
  estimate.model = inputs.model;
  estimate.seq_len = inputs.setups.front().batch.seq_len;
  estimate.cluster = inputs.cluster;
  estimate.choices.reserve(inputs.setups.size());
  for (const TrainSetup& setup : inputs.setups) {
    const Program program = Lower(inputs.model, tensors, setup, inputs.lower);
    estimate.choices.push_back(EstimateProgram(program, inputs.cluster, inputs.costs));
  }
  return estimate;
}

}  // namespace zeroplan
