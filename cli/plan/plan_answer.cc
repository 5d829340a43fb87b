#include "cli/plan/plan_answer.h"

#include "cli/plan/proposal.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/program/save_copy.h"
#include "planner/advice/smallest_change.h"
#include "planner/estimate/choices.h"

namespace zeroplan {
namespace {

[[noreturn]] void ThrowNothingFits(const PlanOptions& options, PlanRequest& request,
                                   const SearchResult& result) {
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
  std::string fix =
      "no change was found that fits, more GPUs as far as the hardware profile goes included; "
      "try a smaller model or another --hw";
  if (result.gave_up) {
    const std::string where =
        options.common.config.empty()
            ? "pin some choices (--stage, --checkpointing, "
              "--offload-optimizer)"
            : fmt::format("set batch and buckets in {}", options.common.config);
    fix = fmt::format("the search gave up after {} programs; {} to look at the others",
                      result.stats.lowered, where);
  }
  if (change) {
    fix = fmt::format("smallest change that fits: {} ({}; {} a GPU, {:.0f} tokens/s)",
                      Proposal(options, request, *change), SetupLabel(change->estimate.setup),
                      FormatBytes(change->estimate.footprint.gpu_total()),
                      change->found.tokens_per_second);
    if (change->estimate.footprint.nvme_bytes > 0) {
      fix += fmt::format(". That takes {} of a node's disk, by the hardware profile's figures",
                         FormatBytes(change->estimate.footprint.nvme_bytes));
    }
  }
  throw Error(ExitCode::kNothingFits, fmt::format("nothing fits. {}{}", fix, closest));
}

// What --async-save makes of the answer, in a sentence. For auto the copy is taken into the plan if
// its hosts have the memory.
std::string SettleAsyncSave(AsyncSave asked, const SearchCluster& at, Plan& plan) {
  LowerOptions lower = plan.lower;
  lower.async_save = true;
  const Program program = Lower(plan.model, plan.setup, lower);
  const std::string copy =
      FormatBytes(SaveCopyBytes(program) * static_cast<uint64_t>(at.cluster.ranks_per_node()));
  if (asked == AsyncSave::kAuto) {
    const ChoiceEstimate with = EstimateProgram(program, at.cluster, at.costs);
    if (!with.fits) {
      return fmt::format(
          "Saves: steps wait for them, as a copy of {} does not fit (--async-save auto): {}.", copy,
          with.why_not);
    }
    plan.lower = lower;
    plan.choice = with;
  }
  return fmt::format(
      "Saves: written beside the steps, from a copy of {} of host memory on each host, of {} in "
      "all (--async-save {}).",
      copy, FormatBytes(plan.choice.footprint.host.total()),
      asked == AsyncSave::kAuto ? "auto" : "on");
}

}  // namespace

PlanAnswer FindAnswer(const PlanOptions& options, PlanRequest& request, Searcher& searcher,
                      const AnswerListener& listener) {
  for (bool again = false;; again = true) {
    SearchResult result = searcher.Run();
    if (!result.best) ThrowNothingFits(options, request, result);
    PlanAnswer answer = {MakePlan(searcher, result), {}};
    if (listener.chosen) listener.chosen(answer.plan, again);
    Advice advice = Advise(searcher, result, request.hardware(), listener.advice, options.quick);
    if (advice.outdated) continue;
    for (const AdviceLine& line : advice.lines) answer.plan.advice.push_back(line.text);
    answer.report = {result.gap, std::move(result.stages), std::move(advice.lines), {}, {}};
    return answer;
  }
}

void FinishAnswer(const PlanOptions& options, const PlanRequest& request, const Searcher& searcher,
                  Assumptions& assumptions, PlanAnswer& answer) {
  Plan& plan = answer.plan;
  const SearchCluster& at = searcher.ClusterOf(CandidateOf(plan.setup));
  NoteAttention(plan.model, plan.setup, plan.lower, request.hardware(), plan.setup.deterministic,
                assumptions);
  NoteGuesses(request.hardware(), at.cluster, std::span(&plan.setup, 1), assumptions);
  NoteIdleSums(std::span(&plan.setup, 1), assumptions);
  if (const auto asked = options.common.async_save.value_or(AsyncSave::kOff);
      asked != AsyncSave::kOff) {
    assumptions.notes.push_back(SettleAsyncSave(asked, at, plan));
  }
  answer.report.assumed = assumptions.assumed;
  answer.report.notes = assumptions.notes;
}

std::string SetSwapFolder(TrainSetup& setup) {
  bool set = false;
  auto fill = [&](auto& offload) {
    if (offload.device != OffloadDevice::kNvme || !offload.nvme_path.empty()) return;
    offload.nvme_path = kSwapFolder;
    set = true;
  };
  fill(setup.zero.offload_optimizer);
  fill(setup.zero.offload_param);
  if (!set) return "";
  return fmt::format("The plan swaps to {}: edit nvme_path, or give train --nvme-path DIR",
                     kSwapFolder);
}

}  // namespace zeroplan
