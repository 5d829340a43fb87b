// What the public header promises, by the parts that the commands are made of.
#include <fmt/format.h>
#include <zeroplan/zeroplan.h>

#include "cli/common/command_line.h"
#include "cli/common/report_option.h"
#include "cli/estimate_request.h"
#include "cli/plan/largest.h"
#include "cli/plan/plan_answer.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"
#include "core/base/version.h"
#include "library/ask.h"
#include "library/read_results.h"
#include "library/report_state.h"
#include "planner/estimate/run_cost.h"
#include "planner/page/plan_page.h"
#include "planner/report/report.h"

namespace zeroplan {

std::vector<std::string> WordsOf(const v1::Options& options) {
  std::vector<std::string> words;
  for (const v1::Option& option : options) {
    const size_t dashes = option.name.starts_with("--") ? 2 : 0;
    if (option.name.size() == dashes) {
      ThrowUsage("an option has no name, and the value '{}'; use a name such as gpus",
                 option.value);
    }
    if (option.value == "false") continue;
    words.push_back("--" + option.name.substr(dashes));
    if (option.value == "true") continue;
    if (option.value.starts_with("-")) {  // as a word of its own it would be an option
      words.back() += '=' + option.value;
    } else {
      words.push_back(option.value);
    }
  }
  return words;
}

namespace {

// The library has zeroplan's own runtime only.
void RefuseOtherRuntimes(const char* command, const RuntimeOptions& runtime) {
  if (!runtime.IsOther()) return;
  ThrowUsage("--runtime: {} is not in the library; use the program: zeroplan {} --runtime {}",
             runtime.runtime.text, command, runtime.runtime.text);
}

std::vector<v1::OptionHelp> HelpOf(const std::function<void(Command&)>& add) {
  std::vector<v1::OptionHelp> help;
  for (ListedOption& option : ListOptions(add)) {
    help.push_back({std::move(option.name), std::move(option.type), std::move(option.help)});
  }
  return help;
}

using ReportState = std::shared_ptr<const v1::Report::State>;

PageOrigin OriginOf(const char* command, const v1::Options& asked, const Assumptions& assumptions) {
  std::vector<std::string> words = WordsOf(asked);
  words.insert(words.begin(), {"zeroplan", command});
  return {ShellCommand(words), assumptions.assumed, assumptions.notes};
}

ReportState StateOf(const EstimateRequest& request, Estimate estimate, PageOrigin origin) {
  EstimateInputs inputs = request.inputs();
  inputs.costs = nullptr;  // the request's
  auto draw = [estimate = std::move(estimate), inputs = std::move(inputs)](const CostModel& costs,
                                                                           const PageOrigin& from) {
    EstimateInputs with = inputs;
    with.costs = &costs;
    return EstimatePage(estimate, with, from);
  };
  return std::make_shared<v1::Report::State>(v1::Report::State{
      std::move(draw), request.hardware(), request.inputs().cluster.shape(), std::move(origin)});
}

// `state`: set where it is not null.
v1::Estimate AnswerEstimate(const v1::Options& asked, ReportState* state) {
  CommonOptions options;
  RuntimeOptions runtime;
  ParseCommand(
      "estimate", [&](Command& command) { AddEstimateInputs(command, options, runtime); },
      WordsOf(asked));
  RefuseOtherRuntimes("estimate", runtime);
  Assumptions assumptions;
  const EstimateRequest request(options, assumptions);
  Estimate found = EstimateChoices(request.inputs());
  std::string json = ReportJson(found);
  v1::Estimate estimate = ReadEstimate(json);
  if (state != nullptr) {
    *state = StateOf(request, std::move(found), OriginOf("estimate", asked, assumptions));
  }
  estimate.assumed = std::move(assumptions.assumed);
  estimate.notes = std::move(assumptions.notes);
  estimate.json = std::move(json);
  return estimate;
}

std::optional<v1::Training> TrainingOf(const RunGoal& goal, const Plan& plan) {
  if (!goal.tokens) return std::nullopt;
  const RunCost cost = CostOf(goal, plan.setup.batch, *plan.choice.time.total_seconds);
  return v1::Training{*goal.tokens, cost.steps, cost.seconds, cost.gpu_hours, cost.price};
}

v1::Choice ChoiceOf(const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  return {setup.batch.world_size,
          zero.stage,
          std::string(OffloadDeviceName(zero.offload_optimizer.device)),
          zero.offload_optimizer.ratio,
          std::string(OffloadDeviceName(zero.offload_param.device)),
          std::string(RecomputeName(setup.recompute)),
          setup.recompute.every,
          setup.batch.micro_batch,
          setup.batch.grad_accum};
}

ReportState StateOf(const PlanRequest& request, const Searcher& searcher, PlanAnswer answer,
                    bool quick, PageOrigin origin) {
  const Cluster& cluster = searcher.ClusterOf(CandidateOf(answer.plan.setup)).cluster;
  std::optional<ScarcestLink> link;
  if (cluster.gpus > 1) link = ScarcestLinkOf(cluster, request.hardware());
  auto draw = [answer = std::move(answer), judged = searcher.Judged(), link, quick](
                  const CostModel& costs, const PageOrigin& from) {
    return PlanPage({answer.plan, answer.report, judged, link, costs, quick}, from);
  };
  return std::make_shared<v1::Report::State>(
      v1::Report::State{std::move(draw), request.hardware(), cluster.shape(), std::move(origin)});
}

// `state`: set where it is not null.
v1::Plan AnswerPlan(const v1::Options& asked, const v1::Progress& progress, ReportState* state) {
  ForbidProgress();  // that line is the program's; whoever asks a library shows their own
  PlanOptions options;
  ParseCommand("plan", [&](Command& command) { AddPlanInputs(command, options); }, WordsOf(asked));
  RefuseOtherRuntimes("plan", options.runtime);
  std::string largest = options.largest ? FindLargest(options) : "";
  Assumptions assumptions;
  PlanRequest request(options, assumptions);
  const RunGoal goal = ResolveGoal(options.common.goal, request.inputs().base.batch.seq_len);
  SearchInputs inputs = request.inputs();
  inputs.effort = options.effort.value_or(1);
  inputs.progress = progress;
  Searcher searcher(std::move(inputs));
  PlanAnswer answer = FindAnswer(options, request, searcher, {});
  FinishAnswer(options, request, searcher, assumptions, answer);
  const std::string swaps = SetSwapFolder(answer.plan.setup);
  std::string json = WritePlanReport(answer.plan, answer.report);
  v1::Plan plan = ReadPlanReport(json);
  plan.choice = ChoiceOf(answer.plan.setup);
  plan.training = TrainingOf(goal, answer.plan);
  if (state != nullptr) {
    *state = StateOf(request, searcher, std::move(answer), options.quick,
                     OriginOf("plan", asked, assumptions));
  }
  if (!swaps.empty()) plan.notes.push_back(swaps);
  plan.largest = std::move(largest);
  plan.json = std::move(json);
  return plan;
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

std::vector<OptionHelp> EstimateOptions() {
  CommonOptions options;
  RuntimeOptions runtime;
  return HelpOf([&](Command& command) { AddEstimateInputs(command, options, runtime); });
}

std::vector<OptionHelp> PlanOptions() {
  zeroplan::PlanOptions options;
  return HelpOf([&](Command& command) { AddPlanInputs(command, options); });
}

std::string Version() { return std::string(kVersion); }

}  // namespace v1
}  // namespace zeroplan
