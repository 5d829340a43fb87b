// The doubts about an answer, and hosts that are assumed.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "cost_models/grouped_cost.h"
#include "planner/advice/advice.h"
#include "planner/advice/smallest_change.h"
#include "planner/report/report_text.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolve.h"
#include "planner/runtimes/planned/planned_models.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

// The host's memory is what its kind has, not what was measured or given.
bool AssumesHost(const Request& request, const HardwareProfile& hardware, const Cluster& cluster) {
  return cluster.host_capacity_bytes && !request.cluster.host_memory &&
         hardware.node.host_memory.source != FigureSource::kMeasured;
}

// The end of the doubt about a host whose memory is a guess: the gain from twice as much, by a
// search of its own. "" if it gains less than kMoreHost.
std::string MoreHostText(ChoiceSearch& searcher, const Plan& plan) {
  constexpr double kMoreHost = 1.1;  // ratio of tokens
  if (!plan.choice.time.tokens_per_second) return "";
  const SearchCluster& at = searcher.ClusterOf(CandidateOf(plan.setup));
  const uint64_t bytes = 2 * *at.cluster.host_capacity_bytes;
  SearchInputs inputs = WithHostMemory(searcher.inputs(), bytes);
  inputs.progress = {};
  const std::unique_ptr<ChoiceSearch> search = searcher.Like(std::move(inputs));
  Question question;
  question.objective = plan.objective;
  question.instruction_budget = searcher.instructions_lowered() / 2;
  const Answer answer = search->Best(question);
  if (!answer.found) return "";
  const double times = answer.found->tokens_per_second / *plan.choice.time.tokens_per_second;
  return times < kMoreHost ? ""
                           : fmt::format(", with {} {}{:.2f} times as fast", FormatBytes(bytes),
                                         answer.gap > 0 ? "at least " : "", times);
}

}  // namespace

bool GuessesHost(const Request& request, const HardwareProfile& hardware, const Cluster& cluster) {
  return AssumesHost(request, hardware, cluster) &&
         hardware.node.host_memory.source == FigureSource::kDerived;
}

std::vector<std::string> Doubts(const Request& request, const HardwareProfile& hardware,
                                const ModelSpec& model, const TorchRecipe& recipe,
                                const ChoiceEstimate& choice, const Cluster& cluster,
                                std::string_view more_host) {
  constexpr double kLittle = 0.1;  // share of a host's memory that every desktop has
  const PlannedCode* planned = model.family->planned();
  std::vector<std::string> clauses = {
      planned != nullptr && !planned->untimed.empty()
          ? fmt::format("the speed of this model is not known: its {} is not timed",
                        fmt::join(planned->untimed, " and "))
          : TimeDoubt(request.runtime.of().LargestTimeError(choice, cluster, hardware))};
  if (choice.mixture) {
    const GroupedCost::Uneven uneven = GroupedCost::WorstUneven(hardware.gpu);
    const bool here = hardware.gpu.grouped.has_value();
    clauses.push_back(fmt::format(
        "its experts are taken to get as many tokens each; with up to {:.1f} times the mean in the "
        "fullest, their matmuls {} up to {:.0f} % longer{}",
        static_cast<double>(uneven.fullest) / 100, here ? "take" : "took", 100 * uneven.share,
        here ? "" : " on an H200"));
  }
  Assumptions guesses;
  NoteGuesses(hardware, cluster, std::span(&choice.setup, 1), recipe, guesses);
  if (!guesses.notes.empty()) {
    clauses.emplace_back("rates of its host or links are guessed ('zeroplan hw measure' there)");
  }
  const uint64_t used = choice.footprint.host.total();
  if (AssumesHost(request, hardware, cluster) &&
      (!more_host.empty() ||
       static_cast<double>(used) > kLittle * static_cast<double>(*cluster.host_capacity_bytes))) {
    // Many desktops have 64 GB, of which the system takes some; a larger host is a server.
    constexpr uint64_t kCommon = 60'000'000'000, kMore = 80'000'000'000, kDesktop = 150'000'000'000;
    const uint64_t bytes = *cluster.host_capacity_bytes;
    const bool flips = used > kCommon && bytes > kMore && bytes <= kDesktop;
    clauses.push_back(fmt::format("a host with {} is assumed{}{} (⟦host_memory⟧)",
                                  FormatBytes(bytes), flips ? ", with 64 GB this does not fit" : "",
                                  more_host));
  }
  return clauses;
}

std::vector<std::string> Doubts(const ResolvedPlan& request, ChoiceSearch& searcher,
                                const Plan& plan, double gap) {
  const Cluster& cluster = searcher.ClusterOf(CandidateOf(plan.setup)).cluster;
  const Request& asked = request.asked().common;
  std::vector<std::string> clauses =
      Doubts(asked, request.hardware(), plan.model, plan.recipe, plan.choice, cluster,
             GuessesHost(asked, request.hardware(), cluster) ? MoreHostText(searcher, plan) : "");
  if (gap > 0) {
    clauses.push_back(fmt::format("another choice may be up to {} % better ({})",
                                  FormatPercent(gap), LooksLonger(request.inputs())));
  }
  return clauses;
}

}  // namespace zeroplan
