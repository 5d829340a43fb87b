#include "planner/advice/shard_groups.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <vector>

#include "core/base/units.h"
#include "cost_models/closed_form.h"
#include "planner/estimate/choices.h"

namespace zeroplan {
namespace {

// "shard groups of 8 (a node)". REQUIRES: group >= 1.
std::string GroupsOfText(int group, const Cluster& cluster) {
  const int nodes = group / cluster.gpus_per_node;
  return fmt::format("shard groups of {}{}", group,
                     nodes == 1  ? " (a node)"
                     : nodes > 1 ? fmt::format(" ({} nodes)", nodes)
                                 : " (a part of a node)");
}

// "stage 2".
std::string StageText(const SearchInputs& inputs, int stage) {
  std::string text = inputs.runtime->StageName(stage);
  text.front() = static_cast<char>(std::tolower(text.front()));
  return text;
}

}  // namespace

std::string HasText(const SearchInputs& inputs, const Sharding& sharding, const Cluster& cluster) {
  if (sharding.stage) return "is " + StageText(inputs, *sharding.stage);
  if (sharding.group == 0) return "has no shard groups";
  return "has " + GroupsOfText(sharding.group, cluster);
}

std::string StaysText(const SearchInputs& inputs, const Sharding& sharding,
                      const Cluster& cluster) {
  if (sharding.stage) return StageText(inputs, *sharding.stage) + " stays the answer";
  if (sharding.group == 0) return "the answer stays without shard groups";
  return "the answer keeps " + GroupsOfText(sharding.group, cluster);
}

std::string GroupMemoryText(const ChoiceEstimate& best, const SearchInputs& inputs) {
  const Candidate now = CandidateOf(best.setup);
  const ModelSpec& model = inputs.model;
  const int across = now.grouping.across_stage;
  if (!inputs.runtime->facts().searches_groups || now.stage == 0 || Offloads(now)) return "";
  if (model.TrainedParamCount() != model.ParamCount()) return "";
  const auto psi = static_cast<double>(model.ParamCount());
  std::vector<std::string> parts, sizes;
  for (const Grouping& grouping : inputs.space.groupings) {
    if (grouping.ranks > 0 && grouping.across_stage != across) continue;
    Candidate other = now;
    other.grouping = grouping;
    const TrainSetup setup = SetupOf(other, inputs.base);
    if (!CanRun(setup.zero)) continue;
    const double bytes =
        ModelStatesPerGpu(now.stage, psi, 0, ShardGroupsOf(setup), setup.precision).total();
    sizes.push_back(FormatBytes(static_cast<uint64_t>(bytes)));
    const bool all = grouping.ranks == 0;
    parts.push_back(fmt::format("{} {} {}", sizes.back(), all ? "over all" : "in groups of",
                                all ? now.gpus : grouping.ranks));
  }
  const bool same =
      std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end();
  if (same) return "";
  constexpr const char* kShared[] = {"", ", groups with the optimizer over all",
                                     ", groups with gradients and the optimizer over all"};
  return fmt::format("Model states a GPU at stage {}{}: {}.", now.stage, kShared[across],
                     fmt::join(parts, ", "));
}

std::string BeyondZero(const ChoiceEstimate& best, const Cluster& cluster) {
  constexpr double kMostWaiting = 0.25, kMostTokens = 16e6;
  if (cluster.nodes() == 1) return "";
  const BatchSpec& batch = best.setup.batch;
  const auto tokens = static_cast<double>(batch.global_batch() * batch.seq_len);
  const double waiting = *best.time.exposed_comm_seconds / *best.time.total_seconds;
  std::string text;
  if (waiting > kMostWaiting) {
    text = fmt::format(
        "{:.0f} % of a step is waiting for communication. At such scales people split layers "
        "within a node (tensor and pipeline parallelism, as Megatron-LM and torchtitan have them), "
        "which zeroplan does not plan.",
        100 * waiting);
  }
  if (tokens > kMostTokens) {
    text += fmt::format(
        "{}A step of {} tokens is more than large models were published with (Llama 3 405B: 16M), "
        "and each GPU has sequences of its own. With smaller steps so many GPUs have to share "
        "sequences and layers (context, tensor and pipeline parallelism), which zeroplan does not "
        "plan.",
        text.empty() ? "" : " ", FormatCount(static_cast<uint64_t>(tokens)));
  }
  return text;
}

}  // namespace zeroplan
