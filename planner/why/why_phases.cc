// What is predicted of hosts, and of the phases around the steps, beside a run that died there.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/units.h"
#include "planner/runtimes/torch_phases.h"
#include "planner/why/why_parts.h"

namespace zeroplan {
namespace {

std::optional<AroundPhase> AroundOf(RunPhase phase) {
  switch (phase) {
    case RunPhase::kLoading:
      return AroundPhase::kLoading;
    case RunPhase::kResume:
      return AroundPhase::kResuming;
    case RunPhase::kEvaluation:
      return AroundPhase::kEvaluation;
    case RunPhase::kSaving:
      return AroundPhase::kSaving;
    case RunPhase::kGather:
      return AroundPhase::kGathering;
    default:
      return std::nullopt;
  }
}

}  // namespace

void FindAround(const RunFailure& failure, WhyAnswer& answer) {
  const WhyPrediction& predicted = *answer.prediction;
  const TorchFootprint& torch = *predicted.choice.footprint.torch;
  const int ranks = predicted.resolved->inputs().cluster.ranks_per_node();
  const std::optional<AroundPhase> around = AroundOf(failure.phase);
  if (!around) return;
  const bool gather = *around == AroundPhase::kGathering;
  const std::vector<AroundPeak>& peaks = gather ? torch.gathers : torch.around;
  for (const AroundPeak& peak : peaks) {
    if (peak.phase != *around) continue;
    std::string text = AroundText(peak, ranks);
    const LogFact* batch = answer.log.Fact(kEvalBatchFact);
    if (batch != nullptr && *around == AroundPhase::kEvaluation) {
      text += fmt::format(" The batch size is the log's ({}, line {}).", batch->from, batch->line);
    }
    // It decides, so it stands before what the log alone tells.
    answer.findings.insert(answer.findings.begin(), std::move(text));
  }
  const bool gathers =
      std::any_of(failure.frames.begin(), failure.frames.end(),
                  [](const std::string& frame) { return frame.ends_with(" nested_concat"); });
  if (gathers) {
    answer.findings.push_back(
        "Evaluation kept the predictions of all batches on the GPU (nested_concat): "
        "eval_accumulation_steps moves them to the host every so many, prediction_loss_only keeps "
        "none.");
  }
  if (peaks.empty()) {
    answer.findings.push_back(fmt::format(
        "What {} takes is not predicted of this run: it is known of transformers' Trainer and of "
        "DeepSpeed's engine.",
        RunPhaseText(failure.phase)));
  }
}

void FindHostShortage(const RunFailure& failure, WhyAnswer& answer) {
  const WhyPrediction& predicted = *answer.prediction;
  const TorchFootprint& torch = *predicted.choice.footprint.torch;
  const Cluster& cluster = predicted.resolved->inputs().cluster;
  const int ranks = cluster.ranks_per_node();
  const uint64_t needs = predicted.choice.footprint.host.total();
  std::string text = fmt::format(
      "Memory of a host as predicted: {} for {} process{} in its steps, {} of it page-locked and "
      "{} "
      "of Python and its libraries each.",
      GiBText(needs), ranks, ranks == 1 ? "" : "es",
      GiBText(torch.host.pinned_bytes * static_cast<uint64_t>(ranks)),
      GiBText(torch.host_base_bytes));
  if (const std::optional<uint64_t>& has = predicted.host_bytes) {
    text += fmt::format(" A host has {}, {} of it beside ⟦host_reserve⟧: that {}.",
                        GiBText(*cluster.host_capacity_bytes), GiBText(*has),
                        needs > *has ? "does not fit" : "fits");
  }
  answer.findings.push_back(std::move(text));
  const RunLog& log = answer.log;
  const bool killed = failure.kind == FailureKind::kKilled;
  constexpr double kSmallPart = 0.6;
  const bool room = killed && log.host_used &&
                    log.host_used->value < kSmallPart * log.host_total->value &&
                    predicted.host_bytes && needs <= *predicted.host_bytes;
  if (log.host_used) {
    answer.findings.push_back(fmt::format(
        "The log has up to {} of a host in use, {:.1f} % of some {:.0f} GiB ({}, line {}).{}",
        GiBText(static_cast<uint64_t>(log.host_used->value)),
        100 * log.host_used->value / log.host_total->value, log.host_total->value / (1ull << 30),
        log.host_used->from, log.host_used->line,
        room ? " Neither explains a host without memory: look for the limit of its job or "
               "container (/sys/fs/cgroup/memory.max; docker --memory, Slurm --mem, a Kubernetes "
               "limit)."
             : ""));
  }
  if (killed && !room) {
    answer.findings.push_back(fmt::format(
        "The kernel ends a process so where a host, or the control group of a job, has no more "
        "memory{}",
        predicted.host_bytes ? "; a control group may allow less than the host has."
                             : "; the log does not say how much there was, ⟦host_memory⟧ does."));
  }
}

bool HostIsShort(const WhyPrediction& predicted) {
  return predicted.choice.why_not.find("host memory: ") != std::string::npos;
}

}  // namespace zeroplan
