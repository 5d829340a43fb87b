// Predicts the gain from lighter optimizer states, FP8 matmuls and sequences over GPUs that a
// request does not use.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "planner/estimate/fp8_products.h"
#include "planner/estimate/light_states.h"
#include "planner/request/plan_answer.h"
#include "planner/search/search.h"
#include "planner/search/search_space.h"

namespace zeroplan {
namespace {

constexpr double kWorthTelling = 1.05;  // ratio of tokens
// The budget is this part of the instructions that the plan's own search lowered.
constexpr uint64_t kPartOfSearch = 5;

std::vector<StatesKind> LighterKinds(LightStates light, Dtype dtype) {
  const LightStates allowed[] = {light};
  std::vector<StatesKind> kinds = KindsOf(allowed, dtype);
  std::erase(kinds, StatesKind{});
  return kinds;
}

// A lower limit, in hundredths, of the speedup that a search with `found` in its space reports:
// that search may return a choice that ties with its best, and the plan may tie with the best of
// its own space.
double TimesToBeFound(const Found& found, const Plan& plan) {
  const double times = found.tokens_per_second / *plan.choice.time.tokens_per_second;
  return std::floor(100 * TieFloor(times)) / 100;
}

class LighterSearch {
 public:
  LighterSearch(ResolvedPlan& request, ChoiceSearch& searcher, const Plan& plan)
      : request_(request),
        searcher_(searcher),
        plan_(plan),
        dtype_(plan.setup.precision.dtype),
        budget_(searcher.instructions_lowered() / kPartOfSearch) {}

  std::string Text() {
    std::vector<std::string> parts;
    for (const LightStates light : kLightStates) {
      if (std::string text = Faster(light); !text.empty()) parts.push_back(std::move(text));
    }
    if (std::string text = OnFewerGpus(); !text.empty()) parts.push_back(std::move(text));
    if (parts.empty()) return "";
    return fmt::format("Optimizer states are fp32; {}.", fmt::join(parts, "; "));
  }

 private:
  // Searches at most as many GPUs as the plan has.
  std::unique_ptr<ChoiceSearch> SearchOf(std::vector<StatesKind> kinds) const {
    SearchInputs inputs = searcher_.inputs();
    inputs.space.states = std::move(kinds);
    inputs.progress = {};
    while (inputs.space.gpus.back() > plan_.setup.batch.world_size) {
      inputs.space.gpus.pop_back();
      inputs.clusters.pop_back();
    }
    return searcher_.Like(std::move(inputs));
  }

  std::string Faster(LightStates light) {
    const std::vector<StatesKind> kinds = LighterKinds(light, dtype_);
    if (kinds.empty() || !plan_.choice.time.tokens_per_second) return "";
    Question question;
    question.objective = plan_.objective;
    question.instruction_budget = budget_ / (std::size(kLightStates) + 1);
    const std::unique_ptr<ChoiceSearch> search = SearchOf(kinds);
    const std::optional<Found> found = search->Best(question).found;
    if (!found) return "";
    const int gpus = plan_.setup.batch.world_size;
    const double times = TimesToBeFound(*found, plan_);
    const bool fewer = found->candidate.gpus < gpus;
    if (!fewer && times < kWorthTelling) return "";
    const TrainSetup setup = SetupOf(found->candidate, searcher_.inputs().base);
    return fmt::format(
        "with ⟦allow⟧ {} {} ({}; {})", AllowText(searcher_.inputs().space.products, light),
        fewer ? fmt::format("it fits on {} GPU{} instead of {}", found->candidate.gpus,
                            found->candidate.gpus == 1 ? "" : "s", gpus)
              : fmt::format("{:.2f} times as fast", times),
        plan_.runtime->ChoiceText(setup), AccuracyText(found->candidate.states, dtype_));
  }

  // Whether such states fit on `gpus` GPUs; nullopt: not known.
  std::optional<bool> Fits(int gpus, const std::vector<StatesKind>& kinds) {
    SearchInputs inputs = searcher_.inputs();
    inputs.progress = {};
    inputs.space.gpus = {gpus};
    inputs.space.states = kinds;
    inputs.clusters = {request_.ClusterOf(gpus)};
    if (!AnyBatch(inputs.space) || Groups(inputs.space).empty()) return std::nullopt;
    const std::unique_ptr<ChoiceSearch> search = searcher_.Like(std::move(inputs));
    Question question;
    question.any = true;
    question.instruction_budget = budget_ / (std::size(kLightStates) + 1) / 2;
    const Answer answer = search->Best(question);
    if (!answer.found && answer.gave_up) return std::nullopt;
    return answer.found.has_value();
  }

  // Halves the number of GPUs until fp32 states do not fit.
  std::string OnFewerGpus() {
    if (plan_.objective != Objective::kThroughput) return "";
    const int per_node = plan_.cluster.gpus_per_node;
    for (int gpus = plan_.setup.batch.world_size; gpus % 2 == 0;) {
      gpus /= 2;
      if (gpus > per_node && gpus % per_node != 0) return "";
      const std::optional<bool> now = Fits(gpus, {StatesKind{}});
      if (!now) return "";
      if (*now) continue;
      for (const LightStates light : kLightStates) {
        const std::vector<StatesKind> kinds = LighterKinds(light, dtype_);
        if (kinds.empty() || !Fits(gpus, kinds).value_or(false)) continue;
        return fmt::format("with ⟦allow⟧ {} the model fits on {} GPU{}, where these do not ({})",
                           AllowText(searcher_.inputs().space.products, light), gpus,
                           gpus == 1 ? "" : "s", AccuracyText(kinds.front(), dtype_));
      }
      return "";
    }
    return "";
  }

  ResolvedPlan& request_;
  ChoiceSearch& searcher_;
  const Plan& plan_;
  const Dtype dtype_;
  const uint64_t budget_;
};

// The best of another space on as many GPUs as the plan's; unset: not known.
std::optional<Found> BestOf(SearchSpace space, ChoiceSearch& searcher, const Plan& plan) {
  SearchInputs inputs = searcher.inputs();
  inputs.space = std::move(space);
  inputs.progress = {};
  const auto at =
      std::find(inputs.space.gpus.begin(), inputs.space.gpus.end(), plan.setup.batch.world_size) -
      inputs.space.gpus.begin();
  inputs.space.gpus = {plan.setup.batch.world_size};
  inputs.clusters = {inputs.clusters[static_cast<size_t>(at)]};
  Question question;
  question.instruction_budget = searcher.instructions_lowered() / kPartOfSearch;
  return searcher.Like(std::move(inputs))->Best(question).found;
}

}  // namespace

std::string FasterProductsText(const ResolvedPlan& request, ChoiceSearch& searcher,
                               const Plan& plan) {
  constexpr double kWorthSaying = 1.03;  // ratio of tokens
  const PlanRequest& asked = request.asked();
  const SearchInputs& inputs = searcher.inputs();
  if (asked.quick || inputs.space.products_fixed || !plan.runtime->facts().own_fp8) return "";
  if (asked.largest || plan.objective != Objective::kThroughput) return "";
  const Dtype dtype = plan.setup.precision.dtype;
  if (dtype != Dtype::kBF16 || !plan.choice.time.tokens_per_second) return "";
  if (!WhyNoFp8(inputs.model, dtype, request.hardware().gpu, Fp8Recipe::kTensor).empty()) return "";
  SearchSpace space = inputs.space;
  space.products = Fp8Kinds(inputs.model, Fp8Recipe::kTensor);
  const std::optional<Found> found = BestOf(std::move(space), searcher, plan);
  if (!found) return "";
  const double times = TimesToBeFound(*found, plan);
  if (times < kWorthSaying) return "";
  const TrainSetup setup = SetupOf(found->candidate, inputs.base);
  return fmt::format("Products are in {}; with ⟦matmul_dtype⟧ fp8 {:.2f} times as fast ({}; {}).",
                     DtypeName(dtype), times, plan.runtime->ChoiceText(setup),
                     AccuracyText(setup.precision.fp8, dtype));
}

std::string FasterSequencesText(const ResolvedPlan& request, ChoiceSearch& searcher,
                                const Plan& plan) {
  constexpr double kWorthSaying = 1.03;  // ratio of tokens
  const PlanRequest& asked = request.asked();
  SearchSpace space = searcher.inputs().space;
  if (asked.quick || space.sequence_ranks_fixed || asked.common.config.given()) return "";
  if (asked.largest || plan.objective != Objective::kThroughput) return "";
  if (space.sequence_ranks == request.full().sequence_ranks) return "";
  // For other choices a smaller micro-batch has the same effect.
  const Candidate chosen = CandidateOf(plan.setup);
  const bool keeps_all = chosen.recompute == kNoRecompute && !Offloads(chosen);
  if (keeps_all || chosen.micro_batch > 1 || !plan.choice.time.tokens_per_second) return "";
  space.sequence_ranks = request.full().sequence_ranks;
  const std::optional<Found> found = BestOf(std::move(space), searcher, plan);
  if (!found || found->candidate.sequence_ranks == 1) return "";
  const double times = TimesToBeFound(*found, plan);
  if (times < kWorthSaying) return "";
  return fmt::format(
      "Each GPU has sequences of its own; with ⟦sequence_ranks⟧ auto {:.2f} times as "
      "fast ({}).",
      times, plan.runtime->ChoiceText(SetupOf(found->candidate, searcher.inputs().base)));
}

std::string LighterStatesText(ResolvedPlan& request, ChoiceSearch& searcher, const Plan& plan) {
  const PlanRequest& asked = request.asked();
  const bool said = searcher.inputs().space.states_fixed;
  if (asked.quick || said || !plan.runtime->facts().searches_states) return "";
  // Lighter states change the result of ⟦largest⟧, and free memory adds no speed.
  if (asked.largest || plan.objective == Objective::kHeadroom) return "";
  return LighterSearch(request, searcher, plan).Text();
}

}  // namespace zeroplan
