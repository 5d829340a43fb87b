// zeroplan plan: searches the choices, says why, writes what DeepSpeed or train take.
#include "planner/plan/plan.h"

#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "cli/common/commands.h"
#include "cli/common/output.h"
#include "cli/common/report_option.h"
#include "cli/plan/config_for.h"
#include "cli/plan/runtime_plan.h"
#include "cli/plan/write_config.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/long_work.h"
#include "core/base/units.h"
#include "core/config/effective_values.h"
#include "core/config/setup_facts.h"
#include "machine/this_machine.h"
#include "planner/estimate/choices.h"
#include "planner/explain/explain.h"
#include "planner/page/plan_page.h"
#include "planner/plan/deepspeed_headroom.h"
#include "planner/report/report_text.h"
#include "planner/request/largest.h"
#include "planner/request/parse.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolved.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan plan --model gpt2-10b --gpu-memory 32GB
  zeroplan plan --params 5B --hw dgx-a100-40gb --gpus 16 --global-batch 256
  zeroplan plan --model gpt3-6.7b --gpus 8 --runtime deepspeed --compile layers --out ds_config.json
  zeroplan plan --model llama3.1-8b --gpus 8 --seq-len 4096 --for accelerate --out run.yaml
  zeroplan plan --model gpt3-6.7b --gpus 8 --plan-out plan.json
  zeroplan plan --model gpt2-xl --gpus 8 --stage 3 --explain
  zeroplan plan --largest --gpus 8 --hw dgx-a100-80gb
  zeroplan plan --params 7B --gpus 8 --largest seq-len
  zeroplan plan --model gpt3-6.7b --gpus 64 --tokens 300B --gpu-hour-price 2.5
What an option leaves open is searched; what it sets stays. Exit code 3 if nothing fits: the message
names the smallest change that would.)";

std::string Headline(const Plan& plan) {
  const Cluster& cluster = plan.cluster;
  return Wrap(
      fmt::format("{}: {} parameters, sequence {}, {}; {} x {}{}, {} a GPU", plan.model.name,
                  FormatCount(plan.model.ParamCount()), plan.setup.batch.seq_len,
                  PrecisionText(plan.setup), cluster.gpus, cluster.gpu_name,
                  cluster.nodes() == 1 ? "" : fmt::format(", {} nodes", cluster.nodes()),
                  FormatBytes(cluster.gpu_capacity_bytes)),
      2);
}

std::string StatsLine(const SearchStats& stats, double seconds) {
  const std::string left =
      stats.left > 0 ? fmt::format(", {} left when its budget was spent", stats.left) : "";
  return Wrap(
      fmt::format("Searched {} choice{} in {}: {} cut by a bound on memory, {} by a bound on "
                  "their score, {} judged by their program{}; {} program{} lowered.",
                  stats.candidates, stats.candidates == 1 ? "" : "s", FormatSeconds(seconds),
                  stats.cut_by_memory, stats.cut_by_score, stats.judged, left, stats.lowered,
                  stats.lowered == 1 ? "" : "s"),
      2);
}

void WriteDeepSpeed(const PlanOptions& options, const Plan& plan) {
  const ConfigSource source = SourceOf(options, OtherRuntime::kDeepSpeed, "zeroplan", plan.model,
                                       plan.setup, plan.cluster.shape());
  if (options.config_for) {
    WriteConfigFile(source, options.as_json());
  } else {
    WriteOutput(options.deepspeed_file, ConfigText(source));
  }
  const uint64_t headroom =
      DeepSpeedExtraMemory(plan.model, plan.setup).Of(plan.setup.batch.micro_batch);
  LogInfo(
      "--out {}: a DeepSpeed config by zeroplan's own choice, not by DeepSpeed's speed (that is "
      "--runtime deepspeed). DeepSpeed needs more GPU memory than zeroplan's {} for the same "
      "choice; this plan leaves {} for that, as much as measured runs of DeepSpeed 0.19.6 took at "
      "most",
      options.deepspeed_file, FormatBytes(plan.choice.footprint.gpu_total()),
      FormatBytes(headroom));
  if (ReducesInFp32(plan.setup)) {
    LogInfo("--out {}: none of these runs of DeepSpeed reduced in fp32", options.deepspeed_file);
  }
  if (plan.setup.recompute.kind == RecomputeKind::kFull) {
    LogInfo("--out {}: recompute is switched on in the model's code for DeepSpeed",
            options.deepspeed_file);
  }
}

// Searches and prints the answer, then what would change it, each as soon as it is known.
PlanAnswer Answer(const PlanOptions& options, ResolvedPlan& request, Searcher& searcher,
                  LongWork& progress, const RunGoal& goal, const std::string& largest) {
  const bool as_text = !options.as_json();
  AnswerListener listener;
  listener.chosen = [&](const Plan& plan, bool again) {
    std::string head =
        again ? '\n' + Wrap(
                           "While looking for what would change the answer, a better one was "
                           "found. What stands above is replaced by this:",
                           2)
              : Headline(plan) + '\n';
    if (!again && !largest.empty()) head += Wrap(largest, 2);
    if (as_text) WriteReport("", head);
    progress.Doing("Looking for what would change the answer");
  };
  listener.advice = [&](const AdviceLine& line) {
    if (as_text) WriteReport("", Wrap(line.text, 2));
  };
  PlanAnswer answer = FindAnswer(request, searcher, listener);
  const Plan& plan = answer.plan;
  if (goal.tokens && as_text) {
    WriteReport("", Wrap(RunCostText(goal, plan.setup.batch, *plan.choice.time.total_seconds), 2));
  }
  return answer;
}

std::string Find(PlanRequest& request) {
  LongWork work("Looking for the largest that fits");
  return FindLargest(request, [&](const std::string& step) { work.Show([&] { return step; }); });
}

void RunPlan(PlanOptions options) {
  ApplyConfigFor(options);
  if (const std::optional<OtherRuntime> runtime = RuntimeOf(options)) {
    RunRuntimePlan(options, *runtime);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<WantedFile> wanted = FilesOfOut(options, OtherRuntime::kDeepSpeed);
  wanted.push_back({"--plan-out", options.plan_file});
  wanted.push_back({"--trace", options.trace_file});
  wanted.push_back({"--report", options.report_file});
  CheckWritable(wanted);
  options.for_deepspeed = !options.deepspeed_file.empty();
  const std::string largest = options.largest ? Find(options) : "";
  Assumptions assumptions;
  ResolvedPlan request(options, assumptions);
  const RunGoal goal = ResolveGoal(options.common.goal, request.inputs().base.batch.seq_len);
  LongWork progress("Searching");
  SearchInputs inputs = request.inputs();
  inputs.effort = options.effort.value_or(1);
  inputs.progress = [&](uint64_t programs) {
    progress.Show([&] { return fmt::format("{} programs lowered", programs); });
  };
  Searcher searcher(std::move(inputs));
  PlanAnswer answer = Answer(options, request, searcher, progress, goal, largest);
  Plan& plan = answer.plan;

  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::string text = '\n' + StatsLine(plan.stats, seconds.count());
  FinishAnswer(request, searcher, assumptions, answer);
  if (!assumptions.assumed.empty()) {
    text += Wrap(fmt::format("Assumed: {}", fmt::join(assumptions.assumed, ", ")), 2);
  }
  for (const std::string& note : assumptions.notes) text += Wrap(note, 2);
  const SearchCluster& at = searcher.ClusterOf(CandidateOf(plan.setup));
  if (options.explain || !options.trace_file.empty()) {
    const Program program = Lower(plan.model, plan.setup, plan.lower);
    if (options.explain) text += '\n' + Explain(program, plan.choice, at.cluster, *at.costs);
    if (!options.trace_file.empty()) {
      WritePredictedTrace(program, *at.costs, options.trace_file);
    }
  }
  if (!options.plan_file.empty() || !options.deepspeed_file.empty() || options.as_json()) {
    if (const std::string swaps = SetSwapFolder(plan.setup); !swaps.empty()) LogInfo("{}", swaps);
  }
  if (options.as_json()) {
    WriteOutput("", WritePlanReport(plan, answer.report));
  } else {
    WriteReport("", text);
  }
  if (!options.plan_file.empty()) WriteOutput(options.plan_file, WritePlan(plan));
  if (!options.report_file.empty()) {
    std::optional<ScarcestLink> link;
    if (at.cluster.gpus > 1) link = ScarcestLinkOf(at.cluster, request.hardware());
    WriteOutput(options.report_file, RenderPage(PlanPage({plan, answer.report, searcher.Judged(),
                                                          link, *at.costs, options.quick},
                                                         ReportOrigin(assumptions))));
  }
  if (!options.deepspeed_file.empty()) WriteDeepSpeed(options, plan);
}

}  // namespace

void RegisterPlan(Command& app) {
  auto options = std::make_shared<PlanOptions>();
  Command command =
      app.Add("plan", "The best stage, offload, recompute and batch, and why the others lose");
  command.Footer(kFooter);
  options->common.hardware.find = FindThisMachine;
  AddPlanFields(command, *options);
  const char* group = "Output";
  command.Text({group, "--out", "FILE",
                "A config of what is best for --runtime, which is deepspeed where it is left out. "
                "With --runtime zeroplan a DeepSpeed config of zeroplan's own choice"},
               options->deepspeed_file);
  AddConfigForOption(command, *options);
  command.Text({group, "--plan-out", "FILE", "The whole plan, for 'train --plan' and 'explain'"},
               options->plan_file);
  command.Text({group, "--trace", "FILE", "The predicted step as a Chrome trace"},
               options->trace_file);
  AddReportOption(command, group, "the answer, what it was chosen from and where it changes",
                  options->report_file);
  AddFormatOption(command, "schema zeroplan.plan/1", options->output_format);
  command.Progress(group);
  command.Flag(group, "--explain",
               "Also the step: phases, peaks and what makes them, streams over time",
               options->explain);
  command.Run([options] { RunPlan(*options); });
}

}  // namespace zeroplan
