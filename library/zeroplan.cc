// What the public header promises, by the planner's requests and answers.
#include <fmt/format.h>
#include <zeroplan/zeroplan.h>

#include <cstdio>
#include <functional>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "core/base/version.h"
#include "library/arguments.h"
#include "library/results.h"
#include "machine/this_machine.h"
#include "planner/page/estimate_page.h"
#include "planner/page/plan_page.h"
#include "planner/report/report.h"
#include "planner/request/largest.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"

namespace zeroplan {

// What a v1::Report draws from.
struct v1::Report::State {
  // The page of the answer. Holds the answer; called by several threads at once.
  std::function<zeroplan::Page(const CostModel& costs, const PageOrigin& origin)> page;
  // Of `costs`. A cost model remembers what it was asked, so each drawing has one of its own.
  HardwareProfile hardware;
  ClusterShape shape;
  PageOrigin origin;  // its command: the command line that asks the same
};

namespace {

using ReportState = std::shared_ptr<const v1::Report::State>;

void WriteMessage(std::string_view text, const char* end) {
  const std::string message = Escaped(NameFields(text)) + end;
  std::fwrite(message.data(), 1, message.size(), stderr);
}

// Calls `work`; what it throws as Error is thrown as v1::Error.
template <typename Work>
auto WithErrors(Work work) {
  SetMessageWriter(WriteMessage);
  try {
    return work();
  } catch (const Error& error) {
    // Whoever catches it may print it as it is: Python does.
    throw v1::Error(static_cast<int>(error.code()), Escaped(NameFields(error.what())));
  }
}

ReportState StateOf(const ResolvedEstimate& request, Estimate estimate, PageOrigin origin) {
  EstimateInputs inputs = request.inputs();
  inputs.costs = nullptr;  // the request's
  inputs.hardware = nullptr;
  auto draw = [estimate = std::move(estimate), inputs = std::move(inputs)](const CostModel& costs,
                                                                           const PageOrigin& from) {
    EstimateInputs with = inputs;
    with.costs = &costs;
    return EstimatePage(estimate, with, from);
  };
  return std::make_shared<v1::Report::State>(v1::Report::State{
      std::move(draw), request.hardware(), request.inputs().cluster.shape(), std::move(origin)});
}

ReportState StateOf(const ResolvedPlan& request, const ChoiceSearch& searcher, PlanAnswer answer,
                    PageOrigin origin) {
  const Cluster& cluster = searcher.ClusterOf(CandidateOf(answer.plan.setup)).cluster;
  std::optional<ScarcestLink> link;
  if (cluster.gpus > 1) link = ScarcestLinkOf(cluster, request.hardware());
  auto draw = [answer = std::move(answer), judged = searcher.Judged(), link,
               quick = request.asked().quick](const CostModel& costs, const PageOrigin& from) {
    return PlanPage({answer.plan, answer.report, judged, link, costs, quick}, from);
  };
  return std::make_shared<v1::Report::State>(
      v1::Report::State{std::move(draw), request.hardware(), cluster.shape(), std::move(origin)});
}

// `state`: set where it is not null.
v1::Estimate AnswerEstimate(const v1::Options& options, ReportState* state) {
  Request asked;
  asked.hardware.find = FindThisMachine;
  Arguments arguments;
  AddEstimateFields(arguments, asked);
  arguments.Read("estimate", options);
  Assumptions assumptions;
  const ResolvedEstimate request(asked, assumptions);
  Estimate found = EstimateChoices(request.inputs());
  v1::Estimate estimate = EstimateOf(found);
  estimate.assumed = Named(assumptions.assumed);
  estimate.notes = Named(assumptions.notes);
  estimate.json = NameFields(ReportJson(found));
  if (state != nullptr) {
    *state = StateOf(request, std::move(found),
                     {CommandLineOf("estimate", options), assumptions.assumed, assumptions.notes});
  }
  return estimate;
}

// `state`: set where it is not null.
v1::Plan AnswerPlan(const v1::Options& options, const v1::Progress& progress, ReportState* state) {
  PlanRequest asked;
  asked.common.hardware.find = FindThisMachine;
  Arguments arguments;
  AddPlanFields(arguments, asked);
  arguments.Read("plan", options);
  const std::string largest = asked.largest ? FindLargest(asked) : "";
  Assumptions assumptions;
  ResolvedPlan request(asked, assumptions);
  const RunGoal goal = ResolveGoal(asked.common.goal, request.inputs().base.batch.seq_len);
  SearchInputs inputs = request.inputs();
  inputs.effort = asked.effort.value_or(1);
  inputs.progress = progress;
  const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(std::move(inputs));
  PlanAnswer answer = FindAnswer(request, *searcher, {});
  FinishAnswer(request, *searcher, assumptions, answer);
  const bool programs = answer.plan.runtime->has_programs();
  const std::string swaps = programs ? SetSwapFolder(answer.plan.setup) : "";
  v1::Plan plan = PlanOf(answer);
  plan.training = TrainingOf(goal, answer.plan.choice);
  plan.largest = NameFields(largest);
  plan.json = NameFields(WritePlanReport(answer.plan, answer.report));
  if (!swaps.empty()) plan.notes.push_back(NameFields(swaps));
  if (state != nullptr) {
    *state = StateOf(request, *searcher, std::move(answer),
                     {CommandLineOf("plan", options), assumptions.assumed, assumptions.notes});
  }
  return plan;
}

Page Drawn(const v1::Report::State* state, const std::string& made_by) {
  if (state == nullptr) {
    ThrowUsage("a report of no answer has no pictures; give it to MakePlan or MakeEstimate first");
  }
  PageOrigin origin = state->origin;
  if (!made_by.empty()) origin.command = made_by;
  return state->page(CostModel(state->hardware, state->shape), origin);
}

}  // namespace

namespace v1 {

Error::Error(int exit_code, const std::string& message)
    : std::runtime_error(message), exit_code_(exit_code) {}
Error::~Error() = default;

Option::Option(std::string name, double number)
    : Option(std::move(name), fmt::format("{}", number)) {}

Estimate MakeEstimate(const Options& options) {
  return WithErrors([&] { return AnswerEstimate(options, nullptr); });
}

Estimate MakeEstimate(const Options& options, Report& report) {
  return WithErrors([&] { return AnswerEstimate(options, &report.state_); });
}

Plan MakePlan(const Options& options, const Progress& progress) {
  return WithErrors([&] { return AnswerPlan(options, progress, nullptr); });
}

Plan MakePlan(const Options& options, Report& report, const Progress& progress) {
  return WithErrors([&] { return AnswerPlan(options, progress, &report.state_); });
}

Report::Report() = default;
Report::~Report() = default;
Report::Report(const Report&) = default;
Report::Report(Report&&) noexcept = default;
Report& Report::operator=(const Report&) = default;
Report& Report::operator=(Report&&) noexcept = default;

std::string Report::Page(const std::string& made_by) const {
  return WithErrors([&] { return NameFields(RenderPage(Drawn(state_.get(), made_by))); });
}

std::string Report::Pictures() const {
  return WithErrors([&] { return NameFields(RenderPictures(Drawn(state_.get(), ""))); });
}

std::vector<OptionHelp> EstimateOptions() {
  Request request;
  Arguments arguments;
  AddEstimateFields(arguments, request);
  return arguments.Help();
}

std::vector<OptionHelp> PlanOptions() {
  PlanRequest request;
  Arguments arguments;
  AddPlanFields(arguments, request);
  return arguments.Help();
}

std::string Version() { return std::string(kVersion); }

}  // namespace v1
}  // namespace zeroplan
