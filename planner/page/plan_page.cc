#include "planner/page/plan_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/units.h"
#include "hwprofiles/machine_title.h"
#include "planner/page/choice_pictures.h"
#include "planner/page/svg.h"
#include "planner/report/report_text.h"
#include "planner/runtimes/planned/planned_models.h"

namespace zeroplan {
namespace {

// The answer as it was searched: the plan's setup has numbers where that has "auto".
Candidate Chosen(const PlanPageInputs& inputs) {
  for (const StageBest& stage : inputs.report.stages) {
    if (stage.stage == inputs.plan.setup.zero.stage && stage.candidate) return *stage.candidate;
  }
  return CandidateOf(inputs.plan.setup);
}

std::vector<JudgedDot> Dots(const PlanPageInputs& inputs) {
  const Candidate chosen = Chosen(inputs);
  std::vector<JudgedDot> dots;
  for (const JudgedChoice& judged : inputs.judged) {
    const Candidate& candidate = judged.found.candidate;
    std::string label = inputs.plan.runtime->ChoiceText(SetupOf(candidate, inputs.plan.setup));
    if (candidate.gpus != chosen.gpus) label += fmt::format(" on {} GPUs", candidate.gpus);
    dots.push_back({std::move(label), judged.found.gpu_bytes, judged.found.tokens_per_second,
                    judged.fits, candidate == chosen});
  }
  return dots;
}

// The best of each stage, the answer first.
std::vector<ShownChoice> StageChoices(const PlanPageInputs& inputs) {
  std::vector<ShownChoice> choices;
  const Candidate chosen = Chosen(inputs);
  for (const bool answer : {true, false}) {
    for (const StageBest& stage : inputs.report.stages) {
      if (!stage.can_run()) continue;
      const bool is_answer = stage.candidate && *stage.candidate == chosen;
      if (is_answer != answer) continue;
      choices.push_back(
          {inputs.plan.runtime->ChoiceText(stage.estimate.setup), &stage.estimate, is_answer});
    }
  }
  return choices;
}

// The largest error of a step's time against measured runs; 0: none is known.
double MarginOf(const PlanPageInputs& inputs) {
  const Plan& plan = inputs.plan;
  const PlannedCode* planned = plan.model.family->planned();
  if (planned != nullptr && !planned->untimed.empty()) return 0;
  return plan.runtime->LargestTimeError(plan.choice, plan.cluster, inputs.hardware);
}

// "llama3.1-8b on 10.0B tokens: DGX H100 (8 GPUs), 28.3 h, 567 at 2.5 a GPU-hour."
std::string RunAnswer(const PlanPageInputs& inputs, const std::string& machine) {
  const Plan& plan = inputs.plan;
  const RunGoal& goal = inputs.report.goal;
  const RunCost run = CostOf(goal, plan.setup.batch, *plan.choice.time.total_seconds);
  double seconds = run.seconds;
  std::optional<double> price = run.price;
  std::string interrupted;
  if (const auto& expected = plan.choice.interrupted) {
    interrupted = " of steps alone";
    if (expected->expected_seconds) {
      seconds = *expected->expected_seconds;
      price = expected->expected_price;
      interrupted = " with interruptions";
    }
  }
  std::string text = fmt::format("{} on {}: {}, {}{}", plan.model.name, RunLengthText(goal),
                                 machine, TimeText(seconds), interrupted);
  if (price) {
    text += fmt::format(", {} at {} a GPU-hour", MoneyText(*price), *goal.gpu_hour_price);
  }
  return text + '.';
}

}  // namespace

Page PlanPage(const PlanPageInputs& inputs, const PageOrigin& origin) {
  const Plan& plan = inputs.plan;
  const TimeEstimate& time = plan.choice.time;
  const std::string machine =
      MachineTitle(inputs.hardware, plan.cluster.gpus, plan.cluster.nodes(), NamesCards(inputs.hw));
  Page page{.origin = origin};
  page.title = fmt::format("{} on {}: the plan", plan.model.name, machine);
  page.facts = {ModelLine(plan.model, plan.setup.batch.seq_len), ClusterLine(plan.cluster),
                BatchLine(plan.setup)};
  page.figures = {{"chosen", plan.runtime->ChoiceText(plan.setup)}};
  page.figures.emplace_back("a step", FormatSeconds(*time.total_seconds));
  page.figures.emplace_back("tokens a second", FormatRate(*time.tokens_per_second));
  if (time.mfu) page.figures.emplace_back("MFU", fmt::format("{:.1f} %", 100 * *time.mfu));
  page.figures.emplace_back("memory of one GPU",
                            fmt::format("{} of {}", FormatBytes(plan.choice.footprint.gpu_total()),
                                        FormatBytes(plan.cluster.gpu_capacity_bytes)));
  page.figures.emplace_back(
      "host memory of a node",
      FormatBytes(plan.choice.footprint.host.total()) +
          (plan.cluster.host_capacity_bytes
               ? fmt::format(" of {}", FormatBytes(*plan.cluster.host_capacity_bytes))
               : ""));
  const double margin = MarginOf(inputs);
  page.figures.emplace_back("margin of error of the time",
                            margin > 0 ? fmt::format("{:.0f} %", 100 * margin) : "not measured");
  // The first line names the choice, the others give its reasons.
  page.details = plan.advice;
  if (!page.details.empty()) {
    page.findings = {page.details.front()};
    page.details.erase(page.details.begin());
  }
  const RunGoal& goal = inputs.report.goal;
  if (goal.tokens) page.answer = RunAnswer(inputs, machine);
  const std::vector<ShownChoice> choices = StageChoices(inputs);
  page.Add(GpuMemoryPicture(choices, plan.cluster));
  page.Add(HostMemoryPicture(choices, plan.cluster));
  page.Add(AroundPicture(plan.choice, plan.cluster));
  std::vector<ShownChoice> timed;
  for (const ShownChoice& choice : choices) {
    if (choice.estimate->fits) timed.push_back(choice);
  }
  page.Add(StepTimePicture(timed, *time.tokens_per_second * *time.total_seconds));
  if (goal.data) AddData(goal, plan.choice, plan.model, page);
  if (goal.tokens) {
    page.findings.push_back(RunCostText(goal, plan.setup.batch, *time.total_seconds));
  }
  page.Add(RunCostPicture(timed, goal));
  const std::vector<JudgedDot> dots = Dots(inputs);
  if (dots.size() > 1) page.Add(FrontPicture(dots, plan.cluster));
  page.Add(FlipPicture(inputs));
  if (plan.runtime->has_programs()) {
    page.Add(StepMemoryPicture(Lower(plan.model, plan.setup, plan.lower), plan.choice.footprint,
                               plan.choice.memory, plan.runtime->ChoiceText(plan.setup),
                               inputs.costs));
  }
  return page;
}

}  // namespace zeroplan
