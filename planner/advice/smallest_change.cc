#include "planner/advice/smallest_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "planner/estimate/fp8_products.h"
#include "planner/estimate/light_states.h"

namespace zeroplan {
namespace {

// Micro-batch, recompute, stage, shard groups, sequence ranks, offload.
constexpr int kFreedoms = 6;

// What of `asked` bit i frees.
void SetFree(int freedom, const SearchSpace& full, SearchSpace& space) {
  switch (freedom) {
    case 0:
      space.micro_batches = full.micro_batches;
      space.grad_accums = full.grad_accums;
      space.max_step_sequences = std::max(full.max_step_sequences, space.max_step_sequences);
      break;
    case 1:
      space.recompute = full.recompute;
      space.mixes = full.mixes;
      break;
    case 2:
      space.stages = full.stages;
      break;
    case 3:
      space.groupings = full.groupings;
      space.grouping_fixed = full.grouping_fixed;
      break;
    case 4:
      space.sequence_ranks = full.sequence_ranks;
      break;
    default:
      space.offload_optimizer = full.offload_optimizer;
      space.offload_param = full.offload_param;
      space.pin_memory = full.pin_memory;
  }
}

bool IsFree(int freedom, const SearchSpace& asked, const SearchSpace& full) {
  SearchSpace freed = asked;
  SetFree(freedom, full, freed);
  switch (freedom) {
    case 0:
      return freed.micro_batches == asked.micro_batches && freed.grad_accums == asked.grad_accums;
    case 1:
      return freed.recompute == asked.recompute && freed.mixes == asked.mixes;
    case 2:
      return freed.stages == asked.stages;
    case 3:
      return freed.groupings == asked.groupings;
    case 4:
      return freed.sequence_ranks == asked.sequence_ranks;
    default:
      return freed.offload_optimizer == asked.offload_optimizer &&
             freed.offload_param == asked.offload_param && freed.pin_memory == asked.pin_memory;
  }
}

// The options that make `found` of what was asked.
std::string Options(const Candidate& found, const SearchSpace& asked) {
  std::string text;
  auto add = [&](const std::string& option) { text += (text.empty() ? "" : " ") + option; };
  auto only = [](const auto& list, const auto& value) {
    return list.size() == 1 && list.front() == value;
  };
  if (!only(asked.gpus, found.gpus)) add(fmt::format("⟦gpus⟧ {}", found.gpus));
  if (!only(asked.sequence_ranks, found.sequence_ranks)) {
    add(fmt::format("⟦sequence_ranks⟧ {}", found.sequence_ranks));
  }
  if (!only(asked.stages, found.stage)) add(fmt::format("⟦stage⟧ {}", found.stage));
  if (!only(asked.groupings, found.grouping)) {
    const Grouping& grouping = found.grouping;
    add(grouping.ranks == 0 ? std::string("⟦shard_group⟧ all")
                            : fmt::format("⟦shard_group⟧ {} ⟦across_groups⟧ {}", grouping.ranks,
                                          AcrossName(grouping.across_stage)));
  }
  if (!only(asked.offload_optimizer, found.optimizer)) {
    add(fmt::format("⟦offload_optimizer⟧ {}", OffloadDeviceName(found.optimizer.device)));
    if (found.optimizer.ratio < 1) add(fmt::format("⟦offload_ratio⟧ {}", found.optimizer.ratio));
  }
  if (found.stage == 3 && !only(asked.offload_param, found.param)) {
    add(fmt::format("⟦offload_param⟧ {}", OffloadDeviceName(found.param)));
  }
  if (!found.pin_memory && !only(asked.pin_memory, false)) add("⟦pin_memory⟧ off");
  if (!only(asked.recompute, found.recompute)) add(RecomputeFields(found.recompute));
  if (!only(asked.micro_batches, found.micro_batch)) {
    add(fmt::format("⟦micro_batch⟧ {}", found.micro_batch));
  }
  if (!only(asked.grad_accums, found.grad_accum)) {
    add(fmt::format("⟦grad_accum⟧ {}", found.grad_accum));
  }
  return text;
}

Change Describe(const ChoiceSearch& searcher, const Found& found, const SearchSpace& asked) {
  return {Options(found.candidate, asked), found, searcher.EstimateCandidate(found.candidate)};
}

// What of a PyTorch program's recipe takes less memory: Liger's kernels, which make no logits and
// the same numbers, then states in 8 bit, which make others.
std::vector<std::pair<std::string, TorchRecipe>> LighterRecipes(const SearchInputs& asked) {
  std::vector<std::pair<std::string, TorchRecipe>> lighter;
  if (!asked.runtime->facts().has_recipe) return lighter;
  TorchRecipe recipe = asked.recipe;
  std::string options;
  const bool others = recipe.code == CodeStyle::kPlain || recipe.code == CodeStyle::kHf;
  if (others && HasCodeOf(CodeStyle::kLiger, asked.model)) {
    recipe.code = CodeStyle::kLiger;
    options = fmt::format("⟦code⟧ {}", CodeStyleName(recipe.code));
    lighter.emplace_back(options, recipe);
  }
  if (!recipe.optimizer) {
    recipe.optimizer = TorchOptimizer::kAdamWTorchao8bit;
    options += fmt::format("{}⟦optim⟧ {}", options.empty() ? "" : " ",
                           TorchOptimizerName(*recipe.optimizer));
    lighter.emplace_back(options, recipe);
  }
  return lighter;
}

// Lighter optimizer states, the most exact that fit; with what was asked, else with all there is.
std::optional<Change> LighterStates(const SearchInputs& asked, const SearchSpace& full,
                                    const Question& question) {
  if (asked.space.states_fixed || !asked.runtime->facts().searches_states) return std::nullopt;
  for (const SearchSpace* space : {&asked.space, &full}) {
    for (const LightStates light : kLightStates) {
      SearchInputs inputs = asked;
      inputs.space = *space;
      inputs.space.states = KindsOf(std::span(&light, 1), asked.base.precision.dtype);
      std::erase(inputs.space.states, StatesKind{});
      if (inputs.space.states.empty()) continue;
      const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(inputs);
      const std::optional<Found> found = searcher->Best(question).found;
      if (!found) continue;
      Change change = Describe(*searcher, *found, asked.space);
      change.options = fmt::format("⟦allow⟧ {}{}{}", AllowText(inputs.space.products, light),
                                   change.options.empty() ? "" : " ", change.options);
      return change;
    }
  }
  return std::nullopt;
}

// With what was asked, else with all there is.
std::optional<Change> LighterRecipe(const SearchInputs& asked, const SearchSpace& full,
                                    const Question& question) {
  for (const SearchSpace* space : {&asked.space, &full}) {
    for (auto& [options, recipe] : LighterRecipes(asked)) {
      SearchInputs inputs = asked;
      inputs.recipe = recipe;
      inputs.space = *space;
      try {
        const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(inputs);
        const std::optional<Found> found = searcher->Best(question).found;
        if (!found) continue;
        Change change = Describe(*searcher, *found, asked.space);
        change.options = options + (change.options.empty() ? "" : " ") + change.options;
        return change;
      } catch (const Error&) {  // the runtime does not have it
        continue;
      }
    }
  }
  return std::nullopt;
}

Question FastestThatFits() {
  Question fastest;
  fastest.instruction_budget = kInstructionBudget / 8;
  return fastest;
}

}  // namespace

SearchInputs WithHostMemory(SearchInputs inputs, uint64_t bytes) {
  for (SearchCluster& at : inputs.clusters) {
    Cluster& cluster = at.cluster;
    if (cluster.host_reserve_bytes == HostReserveBytes(*cluster.host_capacity_bytes)) {
      cluster.host_reserve_bytes = HostReserveBytes(bytes);
    }
    cluster.host_capacity_bytes = bytes;
  }
  return inputs;
}

std::optional<Change> MoreHostMemory(const ChoiceSearch& like) {
  const SearchInputs& asked = like.inputs();
  if (!asked.clusters.back().cluster.host_capacity_bytes) return std::nullopt;
  constexpr uint64_t kMost = 16;
  const uint64_t present = *asked.clusters.back().cluster.host_capacity_bytes;
  std::optional<Change> change;
  uint64_t low = 16, high = 16 * kMost;  // sixteenths
  while (high - low > 1) {
    const uint64_t share = change ? low + (high - low) / 2 : high;
    // As one types it: three digits.
    uint64_t bytes = present / 16 * share, unit = 1;
    while (bytes / unit >= 1000) unit *= 10;
    bytes = bytes / unit * unit;
    const std::unique_ptr<ChoiceSearch> searcher = like.Like(WithHostMemory(asked, bytes));
    const std::optional<Found> found = searcher->Best(FastestThatFits()).found;
    if (found) {
      change = {fmt::format("⟦host_memory⟧ {}GB", static_cast<double>(bytes) / 1e9), *found,
                searcher->EstimateCandidate(found->candidate)};
      high = share;
    } else if (change) {
      low = share;
    } else {
      return std::nullopt;
    }
  }
  return change;
}

std::vector<Change> SingleChanges(const SearchInputs& asked, const SearchSpace& full) {
  std::vector<Change> changes;
  const std::unique_ptr<ChoiceSearch> like = MakeSearch(asked);
  for (int f = 0; f < kFreedoms; ++f) {
    if (IsFree(f, asked.space, full)) continue;
    SearchInputs inputs = asked;
    SetFree(f, full, inputs.space);
    const std::unique_ptr<ChoiceSearch> searcher = like->Like(inputs);
    const std::optional<Found> found = searcher->Best(FastestThatFits()).found;
    if (found) changes.push_back(Describe(*searcher, *found, asked.space));
  }
  return changes;
}

std::optional<Change> SmallestChange(
    const SearchInputs& asked, const SearchSpace& full,
    const std::function<void(int gpus, SearchInputs& inputs)>& set_gpus) {
  unsigned pinned = 0;
  for (int f = 0; f < kFreedoms; ++f) {
    if (!IsFree(f, asked.space, full)) pinned |= 1u << f;
  }
  const Question fastest = FastestThatFits();
  const std::unique_ptr<ChoiceSearch> like = MakeSearch(asked);
  for (int count = 1; count <= std::popcount(pinned); ++count) {
    std::optional<Change> best;
    for (unsigned set = 1; set < (1u << kFreedoms); ++set) {
      if ((set & ~pinned) != 0 || std::popcount(set) != count) continue;
      SearchInputs inputs = asked;
      for (int f = 0; f < kFreedoms; ++f) {
        if ((set >> f & 1) != 0) SetFree(f, full, inputs.space);
      }
      const std::unique_ptr<ChoiceSearch> searcher = like->Like(inputs);
      const std::optional<Found> found = searcher->Best(fastest).found;
      if (!found || (best && Merit(*found) <= Merit(best->found))) continue;
      best = Describe(*searcher, *found, asked.space);
    }
    if (best) return best;
  }
  if (std::optional<Change> change = LighterStates(asked, full, fastest)) return change;
  if (std::optional<Change> change = LighterRecipe(asked, full, fastest)) return change;
  if (std::optional<Change> change = MoreHostMemory(*like)) return change;
  const int64_t gpus = asked.space.gpus.back();
  for (const bool free_all : {false, true}) {
    for (int64_t n = 2 * gpus; n <= std::min(1024 * gpus, kMaxPlannedGpus); n *= 2) {
      SearchInputs inputs = asked;
      if (free_all) inputs.space = full;
      try {
        set_gpus(static_cast<int>(n), inputs);
      } catch (const Error&) {  // the hardware does not go that far
        break;
      }
      n = inputs.space.gpus.front();
      if (n > kMaxPlannedGpus) break;
      if (free_all && !full.sequence_ranks_fixed && asked.runtime->facts().searches_sequences) {
        inputs.space.sequence_ranks = SequenceRanksOf(
            *asked.runtime, asked.model, asked.base.batch.seq_len, static_cast<int>(n));
      }
      const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(inputs);
      if (const std::optional<Found> found = searcher->Best(fastest).found) {
        return Describe(*searcher, *found, asked.space);
      }
    }
    if (pinned == 0) break;
  }
  return std::nullopt;
}

}  // namespace zeroplan
