// What the public header promises, by the planner's requests and answers.
#include <fmt/format.h>
#include <zeroplan/zeroplan.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/strings.h"
#include "core/base/terminal.h"
#include "core/base/version.h"
#include "core/config/deepspeed_writer.h"
#include "core/settings/settings.h"
#include "library/arguments.h"
#include "library/data.h"
#include "machine/detect.h"
#include "planner/estimate/estimate.h"
#include "planner/machines/machines.h"
#include "planner/page/plan_page.h"
#include "planner/report/choice_json.h"
#include "planner/report/report.h"
#include "planner/request/data_fields.h"
#include "planner/request/fields.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"
#include "planner/why/why.h"

namespace zeroplan {

// What a v1::Report draws from.
struct v1::Report::State {
  // The page of the answer. Holds the answer; called by several threads at once.
  // A cost model remembers what it was asked, so each drawing has one of its own.
  std::function<zeroplan::Page(const PageOrigin& origin)> page;
  PageOrigin origin;  // its command: the command line that asks the same
};

namespace {

// Answers of the planner as structs of the public header.

// Text of the planner's with its fields named as options.
std::vector<std::string> Named(const std::vector<std::string>& texts) {
  std::vector<std::string> named;
  named.reserve(texts.size());
  for (const std::string& text : texts) named.push_back(NameFields(text));
  return named;
}

// Unset where the goal has no tokens, or the time is not known.
std::optional<v1::Training> TrainingOf(const RunGoal& goal, const ChoiceEstimate& choice) {
  if (!goal.tokens || !choice.time.total_seconds) return std::nullopt;
  const RunCost cost = CostOf(goal, choice.setup.batch, *choice.time.total_seconds);
  return v1::Training{*goal.tokens,   cost.steps, cost.seconds,
                      cost.gpu_hours, cost.price, cost.gpu_kwh};
}

// Unset where nobody asked, or the time is not known.
std::optional<v1::Interruptions> InterruptionsOf(const ChoiceEstimate& choice) {
  if (!choice.interrupted) return std::nullopt;
  const InterruptedCost& cost = *choice.interrupted;
  const auto known = [&](auto value) { return cost.known ? std::optional(value) : std::nullopt; };
  const auto finite = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? value : std::nullopt;
  };
  return v1::Interruptions{cost.rate * 3600,
                           known(cost.interval_steps),
                           known(cost.interval_seconds),
                           known(cost.save_seconds),
                           known(cost.whole_save_seconds),
                           known(cost.restart_seconds),
                           known(cost.lost_share),
                           finite(cost.expected_seconds),
                           finite(cost.expected_gpu_hours),
                           finite(cost.expected_price),
                           known(cost.notice_needs_seconds),
                           cost.fits_notice};
}

v1::GpuBytes GpuBytesOf(const Footprint& footprint) {
  v1::GpuBytes bytes;
  uint64_t* const parts[] = {&bytes.params,      &bytes.grads,   &bytes.optimizer,
                             &bytes.activations, &bytes.buffers, &bytes.runtime};
  static_assert(std::size(parts) == kGpuClasses);
  const auto classes = GpuClasses(footprint);
  for (size_t i = 0; i < kGpuClasses; ++i) *parts[i] = classes[i].bytes;
  bytes.total = footprint.gpu_total();
  return bytes;
}

v1::HostBytes HostBytesOf(const HostBytes& host) {
  return {host.pinned, host.pageable, host.total()};
}

v1::StepSeconds StepSecondsOf(const TimeEstimate& time) {
  return {time.compute_seconds, time.exposed_comm_seconds, time.exposed_offload_seconds,
          time.optimizer_seconds, time.total_seconds};
}

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <typename T>
void Assign(const SettingValue& value, T& field) {
  if constexpr (IsOptional<T>::value) {
    if (std::holds_alternative<std::monostate>(value)) return field.reset();
    Assign(value, field.emplace());
  } else {
    field = std::get<T>(value);
  }
}

// `of`: the answer whose choice it is.
template <typename Answer>
v1::Choice ChoiceOf(const TrainSetup& setup, const Answer& of) {
  const TorchRecipe* recipe = RecipeOf(of);
  v1::Choice choice;
#define RECORD(id, ...) Assign(RecordValue(setting::id, setup, recipe), choice.id);
#define SETTING(id, Type, parse, ...) RECORD(id, )
#define OPTION(...)
#include "core/settings/setting_rows.inc"
#undef SETTING
#undef OPTION
#undef RECORD
  return choice;
}

v1::EstimatedChoice EstimatedChoiceOf(const ChoiceEstimate& from, const Estimate& estimate) {
  v1::EstimatedChoice choice;
  choice.choice = ChoiceOf(from.setup, estimate);
  const auto known = [](uint64_t elements) {
    return elements == kAuto ? std::nullopt : std::optional(elements);
  };
  choice.reduce_bucket = known(from.settings.reduce_bucket_elements);
  choice.prefetch_bucket = known(from.settings.prefetch_bucket_elements);
  choice.persistence_threshold = from.settings.persistence_threshold;
  choice.reuse_distance = from.settings.reuse_distance;
  choice.overlap = from.settings.overlap;
  choice.gpu_bytes = GpuBytesOf(from.footprint);
  choice.gpu_capacity = estimate.cluster.gpu_capacity_bytes;
  choice.gpu_reserve = estimate.cluster.gpu_reserve_bytes;
  choice.host_bytes = HostBytesOf(from.footprint.host);
  choice.host_capacity = estimate.cluster.host_capacity_bytes;
  choice.host_reserve = estimate.cluster.host_reserve_bytes;
  choice.nvme_bytes = from.footprint.nvme_bytes;
  choice.comm_bytes_per_step = from.traffic ? from.traffic->collective_bytes : 0;
  choice.pcie_bytes_per_step = from.pcie_bytes().value_or(0);
  choice.step_seconds = StepSecondsOf(from.time);
  choice.tokens_per_second = from.time.tokens_per_second;
  choice.mfu = from.time.mfu;
  choice.training = TrainingOf(estimate.goal, from);
  choice.interruptions = InterruptionsOf(from);
  choice.fits = from.fits;
  if (!from.fits) choice.why_not = NameFields(from.why_not);
  return choice;
}

v1::StageAnswer StageOf(const StageBest& from, const Plan& plan) {
  v1::StageAnswer stage;
  stage.stage = from.stage;
  stage.fits = from.candidate.has_value();
  stage.choice =
      ChoiceOf(from.candidate ? SetupOf(*from.candidate, plan.setup) : from.estimate.setup, plan);
  stage.gpu_bytes = GpuBytesOf(from.estimate.footprint);
  stage.host_bytes = HostBytesOf(from.estimate.footprint.host);
  if (!stage.fits) {
    stage.why_not = NameFields(from.estimate.why_not);
    return stage;
  }
  const CauseSeconds lost = SecondsLost(from.estimate.time, plan.choice.time);
  stage.proven = from.proven;
  stage.step_seconds = StepSecondsOf(from.estimate.time);
  stage.lost_seconds = {lost.compute, lost.exposed_comm, lost.exposed_offload, lost.optimizer,
                        lost.total};
  stage.tokens_per_second = from.estimate.time.tokens_per_second;
  return stage;
}

v1::Claim ClaimOf(AdviceKind kind, const Claim& from, const Plan& plan) {
  v1::Claim claim;
  claim.kind = AdviceKindName(kind);
  claim.gpu_memory_bytes = from.gpu_memory_bytes;
  claim.global_batch = from.global_batch;
  claim.gpus = from.gpus;
  claim.bandwidth_scale = from.bandwidth_scale;
  claim.stages = from.stages;
  if (from.found) {
    claim.answer = ChoiceOf(SetupOf(from.found->candidate, plan.setup), plan);
    claim.tokens_per_second = from.found->tokens_per_second;
  }
  for (const Found& other : from.or_else) {
    claim.or_else.push_back(ChoiceOf(SetupOf(other.candidate, plan.setup), plan));
  }
  claim.holds_from = from.holds_from;
  claim.holds_to = from.holds_to;
  claim.gap = from.gap;
  return claim;
}

// `assumed`, `notes` and `json` are left empty.
v1::Estimate EstimateOf(const Estimate& from) {
  v1::Estimate estimate;
  const ModelSpec& model = from.model;
  estimate.model = {model.name,  model.ParamCount(), model.layers, model.hidden,
                    model.heads, model.vocab,        from.seq_len};
  estimate.cluster = {from.cluster.hardware, from.cluster.gpus, from.cluster.gpus_per_node};
  for (const ChoiceEstimate& choice : from.choices) {
    estimate.choices.push_back(EstimatedChoiceOf(choice, from));
  }
  estimate.data = DataOf(from.goal, from.batch());
  return estimate;
}

// `training`, `data`, `largest` and `json` are left empty.
v1::Plan PlanOf(const PlanAnswer& answer) {
  const Plan& from = answer.plan;
  const ChoiceEstimate& choice = from.choice;
  v1::Plan plan;
  plan.choice = ChoiceOf(from.setup, from);
  plan.gpu_bytes = GpuBytesOf(choice.footprint);
  plan.host_bytes = HostBytesOf(choice.footprint.host);
  plan.nvme_bytes = choice.footprint.nvme_bytes;
  plan.comm_bytes_per_step = choice.traffic ? choice.traffic->collective_bytes : 0;
  plan.pcie_bytes_per_step = choice.pcie_bytes().value_or(0);
  plan.step_seconds = StepSecondsOf(choice.time);
  plan.tokens_per_second = choice.time.tokens_per_second;
  plan.mfu = choice.time.mfu;
  plan.gap = answer.report.gap;
  for (const StageBest& stage : answer.report.stages) {
    if (stage.can_run()) plan.stages.push_back(StageOf(stage, from));
  }
  for (const AdviceLine& line : answer.report.advice) {
    for (const Claim& claim : line.claims) {
      plan.claims.push_back(ClaimOf(line.kind, claim, from));
    }
  }
  plan.advice = Named(from.advice);
  plan.assumed = Named(answer.report.assumed);
  plan.notes = Named(answer.report.notes);
  const SearchStats& stats = from.stats;
  plan.search = {std::string(ObjectiveName(from.objective)),
                 stats.candidates,
                 stats.cut_by_memory,
                 stats.cut_by_score,
                 stats.judged,
                 stats.left,
                 stats.lowered,
                 stats.seconds};
  plan.deepspeed_config = from.runtime->facts().trains_here
                              ? WriteConfig(from.setup, from.model.layers)
                              : answer.report.config;
  return plan;
}

using ReportState = std::shared_ptr<const v1::Report::State>;

void WriteMessage(std::string_view text, const char* end) {
  const std::string message = Escaped(NameFields(text)) + end;
  std::fwrite(message.data(), 1, message.size(), stderr);
}

// Calls `work`; what it throws as Error is thrown as v1::Error.
template <typename Work>
auto WithErrors(Work work) {
  SetMessageWriter(WriteMessage);
  ForbidProgress();  // of reading data
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
  auto draw = [estimate = std::move(estimate), inputs = std::move(inputs),
               hardware = request.hardware()](const PageOrigin& from) {
    const CostModel costs(hardware, inputs.cluster.shape());
    EstimateInputs with = inputs;
    with.costs = &costs;
    return EstimatePage(estimate, with, from);
  };
  return std::make_shared<v1::Report::State>(v1::Report::State{std::move(draw), std::move(origin)});
}

ReportState StateOf(const ResolvedPlan& request, const ChoiceSearch& searcher, PlanAnswer answer,
                    PageOrigin origin) {
  const Cluster& cluster = searcher.ClusterOf(CandidateOf(answer.plan.setup)).cluster;
  std::optional<ScarcestLink> link;
  if (cluster.gpus > 1) link = ScarcestLinkOf(cluster, request.hardware());
  auto draw = [answer = std::move(answer), judged = searcher.Judged(), link,
               quick = request.asked().quick, hardware = request.hardware(),
               hw = request.asked().common.hardware.profile,
               shape = cluster.shape()](const PageOrigin& from) {
    const CostModel costs(hardware, shape);
    return PlanPage({answer.plan, answer.report, judged, link, costs, hardware, hw, quick}, from);
  };
  return std::make_shared<v1::Report::State>(v1::Report::State{std::move(draw), std::move(origin)});
}

// `state`: set where it is not null.
v1::Estimate AnswerEstimate(const v1::Options& options, ReportState* state) {
  Request asked;
  asked.hardware.find = FindThisMachine;
  asked.goal.data.read = ReaderOfLibrary();
  Arguments arguments;
  AddEstimateFields(arguments, asked);
  arguments.Read("estimate", options);
  CheckData(asked);
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

PlanRequest PlanAsked(const v1::Options& options) {
  PlanRequest asked;
  asked.common.hardware.find = FindThisMachine;
  asked.common.goal.data.read = ReaderOfLibrary();
  Arguments arguments;
  AddPlanFields(arguments, asked);
  arguments.Read("plan", options);
  CheckData(asked);
  return asked;
}

// `state`: set where it is not null.
v1::Plan AnswerPlan(const v1::Options& options, const v1::Progress& progress, ReportState* state) {
  PlanRequest asked = PlanAsked(options);
  Assumptions assumptions;
  const std::string largest = asked.largest ? FindLargest(asked).text : "";
  ResolvedPlan request(asked, assumptions);
  ResolveGoal(request.asked().common.goal, request.inputs().base.batch, request.hardware().gpu);
  SearchInputs inputs = request.inputs();
  inputs.effort = asked.effort.value_or(1);
  inputs.progress = progress;
  const std::unique_ptr<ChoiceSearch> searcher = MakeSearch(std::move(inputs));
  PlanAnswer answer = FindAnswer(request, *searcher, {});
  FinishAnswer(request, *searcher, assumptions, answer);
  const bool programs = answer.plan.runtime->facts().trains_here;
  const std::string swaps = programs ? SetSwapFolder(answer.plan.setup) : "";
  v1::Plan plan = PlanOf(answer);
  plan.training = TrainingOf(answer.report.goal, answer.plan.choice);
  plan.interruptions = InterruptionsOf(answer.plan.choice);
  plan.data = DataOf(answer.report.goal, answer.plan.setup.batch);
  plan.largest = NameFields(largest);
  plan.json = NameFields(WritePlanReport(answer.plan, answer.report));
  if (!swaps.empty()) plan.notes.push_back(NameFields(swaps));
  if (state != nullptr) {
    *state = StateOf(request, *searcher, std::move(answer),
                     {CommandLineOf("plan", options), assumptions.assumed, assumptions.notes});
  }
  return plan;
}

v1::MachinePlan MachinePlanOf(const MachineRow& row, const MachineComparison& all) {
  v1::MachinePlan plan;
  plan.hw = row.hw.empty() ? row.cluster.hardware : row.hw;
  plan.gpus = row.gpus;
  plan.fits = row.choice.has_value();
  plan.why_not = NameFields(row.why_not);
  plan.gap = row.gap;
  if (!row.choice) return plan;
  const TrainSetup& setup = row.choice->setup;
  plan.choice = ChoiceOf(setup, all);
  plan.tokens_per_second = row.choice->time.tokens_per_second;
  plan.seconds = row.run.seconds;
  plan.price = row.price;
  plan.spot_price = row.spot_price;
  plan.gpu_kwh = row.run.gpu_kwh;
  plan.steps_alone = row.steps_alone;
  plan.in_time = row.in_time;
  plan.in_budget = row.in_budget;
  plan.unbeaten = row.front;
  plan.data = DataOf(row.goal, setup.batch);
  return plan;
}

// `state`: set where it is not null.
v1::MachineComparison AnswerMachines(const v1::Options& options, const v1::Progress& progress,
                                     ReportState* state) {
  PlanRequest asked = PlanAsked(options);
  Assumptions assumptions;
  MachineComparison all = CompareMachines(asked, assumptions, [&](size_t done, const std::string&) {
    if (progress) progress(done);
  });
  v1::MachineComparison comparison;
  comparison.tokens = all.tokens;
  comparison.objective = MachineObjectiveName(all.objective);
  if (!all.currency.empty()) comparison.currency = all.currency;
  for (const MachineRow& row : all.rows) comparison.machines.push_back(MachinePlanOf(row, all));
  comparison.assumed = Named(assumptions.assumed);
  comparison.notes = Named(assumptions.notes);
  comparison.json = NameFields(MachinesJson(all, assumptions));
  if (state != nullptr) {
    *state = std::make_shared<v1::Report::State>(v1::Report::State{
        [all = std::move(all)](const PageOrigin& from) { return MachinesPage(all, from); },
        {CommandLineOf("plan", options), assumptions.assumed, assumptions.notes}});
  }
  return comparison;
}

v1::RunExplained AnswerWhy(const std::string& log, const v1::Options& options) {
  WhyRequest asked;
  asked.log = log;
  Arguments arguments;
  AddWhyFields(arguments, asked);
  arguments.Read("why", options);
  const WhyAnswer answer = FindWhy(asked);
  v1::RunExplained explained;
  explained.text = NameFields(WhyText(answer, kPlainColumns));
  explained.json = NameFields(WhyJson(answer));
  explained.incomplete = NameFields(WhyIncomplete(answer));
  return explained;
}

Page Drawn(const v1::Report::State* state, const std::string& made_by) {
  if (state == nullptr) {
    ThrowUsage("a report of no answer has no pictures; give it to MakePlan or MakeEstimate first");
  }
  PageOrigin origin = state->origin;
  if (!made_by.empty()) origin.command = made_by;
  return state->page(origin);
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

MachineComparison CompareMachines(const Options& options, const Progress& progress) {
  return WithErrors([&] { return AnswerMachines(options, progress, nullptr); });
}

MachineComparison CompareMachines(const Options& options, Report& report,
                                  const Progress& progress) {
  return WithErrors([&] { return AnswerMachines(options, progress, &report.state_); });
}

RunExplained ExplainRun(const std::string& log, const Options& options) {
  return WithErrors([&] { return AnswerWhy(log, options); });
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

std::vector<OptionHelp> ExplainRunOptions() {
  WhyRequest request;
  Arguments arguments;
  AddWhyFields(arguments, request);
  return arguments.Help();
}

std::string Version() { return std::string(kVersion); }

}  // namespace v1

}  // namespace zeroplan
