// zeroplan plan: searches the choices, says why, writes what DeepSpeed or train take.
#include "planner/plan/plan.h"

#include <fmt/ranges.h>

#include <memory>

#include "cli/app.h"
#include "cli/common/output.h"
#include "cli/common/parse.h"
#include "cli/common/predicted_trace.h"
#include "cli/plan/plan_request.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/units.h"
#include "core/config/deepspeed_writer.h"
#include "core/config/effective_values.h"
#include "planner/advice/advice.h"
#include "planner/advice/smallest_change.h"
#include "planner/estimate/choices.h"
#include "planner/explain/explain.h"
#include "planner/plan/deepspeed_headroom.h"
#include "planner/plan/plan_file.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

constexpr const char* kFooter = R"(Examples:
  zeroplan plan --model gpt2-10b --gpu-memory 32GB
  zeroplan plan --params 5B --hw dgx-a100-40gb --gpus 16 --global-batch 256
  zeroplan plan --model gpt3-6.7b --gpus 8 --out ds_config.json --plan-out plan.json
  zeroplan plan --model gpt2-xl --gpus 8 --stage 3 --explain
What an option leaves open is searched; what it sets stays. Exit code 3 if nothing fits: the message
names the smallest change that would.)";

[[noreturn]] void ThrowNothingFits(PlanRequest& request, const SearchResult& result) {
  std::string closest;
  for (const StageBest& stage : result.stages) {
    if (!stage.can_run()) continue;
    const std::string why =
        stage.estimate.fits
            ? fmt::format("takes {} a GPU, and what DeepSpeed takes beyond that does not fit",
                          FormatBytes(stage.estimate.footprint.gpu_total()))
            : stage.estimate.why_not;
    closest += fmt::format("\n  {}, micro-batch {}: {}", SetupLabel(stage.estimate.setup),
                           stage.estimate.setup.batch.micro_batch, why);
  }
  const std::optional<Change> change = SmallestChange(
      request.inputs(), request.full(), [&](int gpus) { return request.ClusterOf(gpus); });
  std::string fix = result.gave_up
                        ? fmt::format(
                              "the search gave up after {} programs; pin some choices (--stage, "
                              "--checkpointing, --offload-optimizer) to look at the others",
                              result.stats.lowered)
                        : "no change was found that fits, more GPUs as far as the hardware profile "
                          "goes included; "
                          "try a smaller model or another --hw";
  if (change) {
    fix = fmt::format("smallest change that fits: {} ({}; {} a GPU, {:.0f} tokens/s)",
                      change->options, SetupLabel(change->estimate.setup),
                      FormatBytes(change->estimate.footprint.gpu_total()),
                      change->found.tokens_per_second);
  }
  throw Error(ExitCode::kNothingFits, fmt::format("nothing fits. {}{}", fix, closest));
}

std::string Headline(const Plan& plan) {
  const Cluster& cluster = plan.cluster;
  return Wrap(
      fmt::format("{}: {} parameters, sequence {}, {}; {} x {}{}, {} a GPU", plan.model.name,
                  FormatCount(plan.model.ParamCount()), plan.setup.batch.seq_len,
                  DtypeName(plan.setup.precision.dtype), cluster.gpus, cluster.gpu_name,
                  cluster.nodes() == 1 ? "" : fmt::format(", {} nodes", cluster.nodes()),
                  FormatBytes(cluster.gpu_capacity_bytes)),
      2);
}

std::string StatsLine(const SearchStats& stats) {
  const std::string left =
      stats.left > 0 ? fmt::format(", {} left when its budget was spent", stats.left) : "";
  return Wrap(
      fmt::format("Searched {} choices in {}: {} cut by a bound on memory, {} by a bound on "
                  "their score, {} judged by their program{}; {} programs lowered.",
                  stats.candidates, FormatSeconds(stats.seconds), stats.cut_by_memory,
                  stats.cut_by_score, stats.judged, left, stats.lowered),
      2);
}

void WriteDeepSpeed(const PlanOptions& options, const Plan& plan) {
  WriteOutput(options.deepspeed_file, WriteDeepSpeedConfig(plan.setup, plan.model.layers));
  const uint64_t headroom =
      DeepSpeedExtraMemory(plan.model, plan.setup).Of(plan.setup.batch.micro_batch);
  LogInfo(
      "--out {}: DeepSpeed needs more GPU memory than zeroplan's {} for the same choice; this plan "
      "leaves {} for that, as much as measured runs of DeepSpeed 0.19.6 took at most",
      options.deepspeed_file, FormatBytes(plan.choice.footprint.gpu_total()),
      FormatBytes(headroom));
  if (plan.setup.recompute.kind == RecomputeKind::kFull) {
    LogInfo("--out {}: recompute is switched on in the model's code for DeepSpeed",
            options.deepspeed_file);
  }
}

// Where to swap is no part of a choice, but a file that leaves it out cannot be run.
void SetSwapFolder(TrainSetup& setup) {
  constexpr const char* kSwapFolder = "/local_nvme";
  bool set = false;
  auto fill = [&](auto& offload) {
    if (offload.device != OffloadDevice::kNvme || !offload.nvme_path.empty()) return;
    offload.nvme_path = kSwapFolder;
    set = true;
  };
  fill(setup.zero.offload_optimizer);
  fill(setup.zero.offload_param);
  if (set) {
    LogInfo("The plan swaps to {}: edit nvme_path, or give train --nvme-path DIR", kSwapFolder);
  }
}

void RunPlan(const PlanOptions& options) {
  Assumptions assumptions;
  PlanRequest request(options, assumptions);
  Searcher searcher(request.inputs());
  const SearchResult result = searcher.Run();
  if (!result.best) ThrowNothingFits(request, result);
  Plan plan = MakePlan(searcher, result);
  plan.advice = Advise(searcher, result, request.hardware());

  std::string text = Headline(plan) + '\n';
  for (const std::string& line : plan.advice) text += Wrap(line, 2);
  text += '\n' + StatsLine(plan.stats);
  if (!assumptions.assumed.empty()) {
    text += Wrap(fmt::format("Assumed: {}", fmt::join(assumptions.assumed, ", ")), 2);
  }
  const SearchCluster& at = searcher.ClusterOf(CandidateOf(plan.setup));
  NoteGuesses(request.hardware(), at.cluster, std::span(&plan.setup, 1), assumptions);
  for (const std::string& note : assumptions.notes) text += Wrap(note, 2);
  if (options.explain || !options.trace_file.empty()) {
    const Program program = Lower(plan.model, plan.setup, plan.lower);
    if (options.explain) text += '\n' + Explain(program, plan.choice, at.cluster, *at.costs);
    if (!options.trace_file.empty()) {
      WritePredictedTrace(program, *at.costs, options.trace_file);
    }
  }
  WriteOutput("", text);
  if (!options.plan_file.empty() || !options.deepspeed_file.empty()) SetSwapFolder(plan.setup);
  if (!options.plan_file.empty()) WriteOutput(options.plan_file, WritePlan(plan));
  if (!options.deepspeed_file.empty()) WriteDeepSpeed(options, plan);
}

}  // namespace

void RegisterPlan(Command& app) {
  auto options = std::make_shared<PlanOptions>();
  Command command =
      app.Add("plan", "The best stage, offload, recompute and batch, and why the others lose");
  command.Footer(kFooter);
  AddModelOptions(command, options->common.model);
  AddClusterOptions(command, options->common);
  AddBatchOptions(command, options->common.batch, /*searched=*/true);
  AddChoiceOptions(command, options->common, /*all_default=*/true, /*searched=*/true);
  command.Value({"Search", "--objective", "throughput|headroom|fewest-gpus",
                 "What is best: most tokens/s, most GPU memory left, or fewest of --gpus (default "
                 "throughput)"},
                options->objective, WordIn<Objective>({"throughput", "headroom", "fewest-gpus"}));
  const char* group = "Output";
  command.Text({group, "--out", "FILE",
                "A DeepSpeed config of the plan; only what DeepSpeed can do is considered then, "
                "with the memory that it takes beyond zeroplan's"},
               options->deepspeed_file);
  command.Text({group, "--plan-out", "FILE", "The whole plan, for 'train --plan' and 'explain'"},
               options->plan_file);
  command.Text({group, "--trace", "FILE", "The predicted step as a Chrome trace"},
               options->trace_file);
  command.Flag(group, "--explain",
               "Also the step: phases, peaks and what makes them, streams over time",
               options->explain);
  command.Run([options] { RunPlan(*options); });
}

}  // namespace zeroplan
