// Resolves the shard groups of a request.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "planner/estimate/choices.h"
#include "planner/request/resolve.h"

namespace zeroplan {

int GpusPerNode(const ClusterFields& cluster, const HardwareProfile& hardware, int gpus) {
  const auto of_profile = hardware.node.gpu_count();
  return cluster.gpus_per_node.value_or(std::min(gpus, of_profile));
}

namespace {

// Sizes of groups that are smaller than the whole cluster.
std::vector<std::string> SmallerGroups(int gpus, int gpus_per_node) {
  std::vector<std::string> sizes;
  for (int group = 2; group < gpus && sizes.size() < 12; ++group) {
    if (!TilesNodes(group, gpus, gpus_per_node)) continue;
    sizes.push_back(fmt::format("{}{}", group, group == gpus_per_node ? " (node)" : ""));
  }
  return sizes;
}

}  // namespace

std::string GroupsText(int gpus, int gpus_per_node) {
  std::vector<std::string> sizes = SmallerGroups(gpus, gpus_per_node);
  sizes.push_back(fmt::format("{} (all)", gpus));
  return fmt::format("{}", fmt::join(sizes, ", "));
}

Grouping ResolveGrouping(const AskedSettings& fields, int gpus, int gpus_per_node) {
  Grouping grouping;
  if (const Given<int>& group = fields.shard_group) {
    const int ranks = *group == kWholeNode ? std::min(gpus, gpus_per_node) : *group;
    if (ranks > 0 && !TilesNodes(ranks, gpus, gpus_per_node)) {
      ThrowUsage("⟦shard_group⟧: {} is not allowed with {} GPU{}, {} a node; use {}", group.text,
                 gpus, gpus == 1 ? "" : "s", std::min(gpus, gpus_per_node),
                 GroupsText(gpus, gpus_per_node));
    }
    // A node of one GPU shards nothing.
    if (ranks == 1 && gpus > 1) {
      ThrowUsage("⟦shard_group⟧: a node has one GPU, which shards nothing; use {}",
                 GroupsText(gpus, gpus_per_node));
    }
    grouping.ranks = ranks == gpus ? 0 : ranks;
  }
  const Given<int>& across = fields.across_groups;
  grouping.across_stage = across.value_or(0);
  if (grouping.ranks == 0 && grouping.across_stage > 0 && fields.shard_group) {
    ThrowUsage(
        "⟦across_groups⟧: {} is not allowed with ⟦shard_group⟧ {}, which is one group of all GPUs; "
        "leave one of the two out",
        across.text, fields.shard_group.text);
  }
  return grouping;
}

void ThrowWithoutGroups(const AskedSettings& fields, int gpus, int gpus_per_node) {
  const std::vector<std::string> sizes = SmallerGroups(gpus, gpus_per_node);
  const std::string fix = sizes.empty()
                              ? "leave it out"
                              : fmt::format("add ⟦shard_group⟧ ({})", fmt::join(sizes, ", "));
  ThrowUsage("⟦across_groups⟧: {} has no effect without shard groups; {}",
             fields.across_groups.text, fix);
}

std::vector<TrainSetup> SetupsInGroups(const AskedSettings& fields, const TrainSetup& base,
                                       ChoiceSpace space, int gpus_per_node,
                                       Assumptions& assumptions) {
  const int gpus = base.batch.world_size;
  space.grouping = ResolveGrouping(fields, gpus, gpus_per_node);
  const Grouping& grouping = space.grouping;
  if (grouping.ranks == 0 && grouping.across_stage > 0) {
    ThrowWithoutGroups(fields, gpus, gpus_per_node);
  }
  std::vector<TrainSetup> setups = EnumerateSetups(base, space);
  for (const int stage : space.stages) {
    const bool without = grouping.ranks > 0 && (stage == 0 || grouping.across_stage > stage);
    if (!without || !fields.stage) continue;
    assumptions.notes.push_back(fmt::format("Stage {} is left out: it does not go with {}.", stage,
                                            stage == 0
                                                ? "⟦shard_group⟧ " + fields.shard_group.text
                                                : "⟦across_groups⟧ " + fields.across_groups.text));
  }
  return setups;
}

}  // namespace zeroplan
