#include "planner/advice/advice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/advice/flips.h"
#include "planner/advice/loss_reason.h"
#include "planner/estimate/choices.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

std::string BatchText(const TrainSetup& setup) {
  const BatchSpec& b = setup.batch;
  return b.grad_accum == 1
             ? fmt::format("micro-batch {}", b.micro_batch)
             : fmt::format("micro-batch {} x {} micro-steps", b.micro_batch, b.grad_accum);
}

std::string RateText(double tokens_per_second) {
  return fmt::format("{} tokens/s", FormatCount(static_cast<uint64_t>(tokens_per_second)));
}

std::string KindText(const SearchInputs& inputs, const Candidate& candidate) {
  const TrainSetup setup = SetupOf(candidate, inputs.base);
  return fmt::format("{} ({})", SetupLabel(setup), BatchText(setup));
}

std::string Chosen(const ChoiceEstimate& best, const SearchInputs& inputs,
                   const SearchCluster& at) {
  const TimeEstimate& t = best.time;
  std::string host;
  if (best.footprint.host.total() > 0 && at.cluster.host_capacity_bytes) {
    host = fmt::format(", {} of {} of host memory", FormatBytes(best.footprint.host.total()),
                       FormatBytes(*at.cluster.host_capacity_bytes));
  }
  const char* why = inputs.objective == Objective::kThroughput ? "the fastest"
                    : inputs.objective == Objective::kHeadroom ? "what leaves most GPU memory"
                                                               : "the fewest GPUs";
  return fmt::format(
      "Chosen: {}, {} on {} GPU{}: {} of all that fits. {} a step, {} ({} a GPU), MFU {:.3g} %; "
      "{} of {} a GPU{}.",
      SetupLabel(best.setup), BatchText(best.setup), best.setup.batch.world_size,
      best.setup.batch.world_size == 1 ? "" : "s", why, FormatSeconds(*t.total_seconds),
      RateText(*t.tokens_per_second), RateText(*t.tokens_per_second / best.setup.batch.world_size),
      100 * *t.mfu, FormatBytes(best.footprint.gpu_total()),
      FormatBytes(at.cluster.gpu_capacity_bytes), host);
}

// Where a step's time goes.
std::string TimeShares(const ChoiceEstimate& best) {
  const TimeEstimate& t = best.time;
  auto share = [&](const std::optional<double>& part) {
    const double percent = 100 * *part / *t.total_seconds;
    return fmt::format("{:.{}f}", percent, percent < 9.95 ? 2 : 1);
  };
  return fmt::format(
      "A step is {} % compute, {} % waiting for communication, {} % waiting for offload, {} % "
      "optimizer.",
      share(t.compute_seconds), share(t.exposed_comm_seconds), share(t.exposed_offload_seconds),
      share(t.optimizer_seconds));
}

// The least GPU memory at which a stage that does not fit would.
std::string FitsFrom(Searcher& searcher, int stage) {
  Question question;
  question.objective = Objective::kHeadroom;
  question.gpu_capacity_bytes = UINT64_MAX / 4;
  question.instruction_budget = kInstructionBudget / 20;
  question.among = [stage](const Candidate& c) { return c.stage == stage; };
  const std::optional<Found> found = searcher.Best(question);
  if (!found) return "";
  return fmt::format("; it would fit from {} a GPU on, as {}",
                     FormatBytes(GpuBytesNeeded(searcher.inputs(), *found)),
                     KindText(searcher.inputs(), found->candidate));
}

void AddOthers(Searcher& searcher, const SearchResult& result, std::vector<std::string>& lines) {
  const ChoiceEstimate& best = result.stages[*result.best].estimate;
  for (size_t s = 0; s < result.stages.size(); ++s) {
    if (s == *result.best) continue;
    const StageBest& other = result.stages[s];
    if (!other.can_run()) continue;
    if (!other.candidate) {
      const std::string why = other.estimate.fits
                                  ? fmt::format(
                                        "takes {}, and what is to be left free beside it does "
                                        "not fit",
                                        FormatBytes(other.estimate.footprint.gpu_total()))
                                  : other.estimate.why_not + FitsFrom(searcher, other.stage);
      lines.push_back(fmt::format("Stage {} does not fit. Closest: {}: {}.", other.stage,
                                  KindText(searcher.inputs(), CandidateOf(other.estimate.setup)),
                                  why));
      continue;
    }
    lines.push_back(fmt::format(
        "{}{}: {}.", other.proven ? "" : "About: ", KindText(searcher.inputs(), *other.candidate),
        LossReason(other.estimate, best, searcher.inputs().objective)));
    lines.back()[0] = static_cast<char>(std::toupper(lines.back()[0]));
  }
}

std::string FlipText(const SearchInputs& inputs, const Flip& flip) {
  if (!flip.after) return "nothing fits";
  return fmt::format("the answer is {}, {}", KindText(inputs, flip.after->candidate),
                     RateText(flip.after->tokens_per_second));
}

constexpr const char* kGaveUp =
    "Not looked further for where {} would change the answer: programs of this size take too long.";

void AddMemoryFlips(Searcher& searcher, const Found& now, std::vector<std::string>& lines) {
  for (const bool larger : {true, false}) {
    bool gave_up = false;
    const std::optional<Flip> flip = MemoryFlip(searcher, now, larger, &gave_up);
    if (flip) {
      lines.push_back(fmt::format("{} {} a GPU {}.", larger ? "From" : "Below",
                                  FormatBytes(static_cast<uint64_t>(flip->at)),
                                  FlipText(searcher.inputs(), *flip)));
    } else if (gave_up) {
      lines.push_back(
          fmt::format(fmt::runtime(kGaveUp), larger ? "more GPU memory" : "less GPU memory"));
    } else if (larger) {
      lines.push_back("More GPU memory (up to 16 times) would not change the answer.");
    }
  }
}

void AddBatchFlips(Searcher& searcher, const Found& now, std::vector<std::string>& lines) {
  bool any = false, gave_up = false;
  for (const bool larger : {true, false}) {
    const std::optional<Flip> flip = BatchFlip(searcher, now, larger, &gave_up);
    if (!flip) continue;
    any = true;
    lines.push_back(fmt::format("With {} sequences a step {}.", static_cast<int64_t>(flip->at),
                                FlipText(searcher.inputs(), *flip)));
  }
  if (gave_up) {
    lines.push_back(fmt::format(fmt::runtime(kGaveUp), "the batch"));
  } else if (!any) {
    lines.push_back(
        "More or less accumulation (up to 64 times the batch either way) would not change it.");
  }
}

// The scarcest link of the plan's GPUs: the network where there are several nodes.
struct Link {
  bool network = false;
  double bytes_per_second = 0;
  ScaledCosts costs;

  std::string Name() const {
    return network ? "between nodes (each node, each direction)"
                   : "between the GPUs (each one, each direction)";
  }
};

Link LinkOf(const Searcher& searcher, const Candidate& candidate, const HardwareProfile& hardware) {
  const int per_node = searcher.ClusterOf(candidate).cluster.gpus_per_node;
  Link link;
  link.network = candidate.gpus > per_node;
  link.bytes_per_second =
      link.network ? hardware.network->bandwidth_per_node.value : hardware.node.gpu_link.value;
  link.costs = [&hardware, per_node, network = link.network](int gpus, double scale) {
    HardwareProfile scaled = hardware;
    if (network) scaled.network->bandwidth_per_node.value *= scale;
    return CostModel(scaled, {gpus, std::min(gpus, per_node)}, network ? 1 : scale);
  };
  return link;
}

// "below 114 Gb/s between nodes (each node, each direction) the answer is ... (now 1600 Gb/s)".
std::string CrossoverText(const SearchInputs& inputs, const Link& link, const Flip& flip) {
  return fmt::format("{} {} {} {} (now {})", flip.at > 1 ? "above" : "below",
                     FormatBandwidth(flip.at * link.bytes_per_second, link.network), link.Name(),
                     FlipText(inputs, flip), FormatBandwidth(link.bytes_per_second, link.network));
}

std::vector<Flip> AddBandwidthFlips(Searcher& searcher, const Found& now,
                                    const HardwareProfile& hardware,
                                    std::vector<std::string>& lines) {
  const Link link = LinkOf(searcher, now.candidate, hardware);
  std::vector<Flip> flips;
  bool gave_up = false;
  for (const bool faster : {true, false}) {
    const std::optional<Flip> flip = BandwidthFlip(searcher, now, link.costs, faster, &gave_up);
    if (!flip) continue;
    flips.push_back(*flip);
    lines.push_back(fmt::format("Crossover: {}.", CrossoverText(searcher.inputs(), link, *flip)));
  }
  if (flips.empty() && gave_up) {
    lines.push_back(fmt::format(
        "Crossover {}: not settled, stages are too close to tell within the search's budget.",
        link.Name()));
  } else if (flips.empty()) {
    lines.push_back(fmt::format(
        "No crossover found: with 1/64 to 64 times the bandwidth {} (now {}) stage {} stays the "
        "answer; "
        "what changes it is named above.",
        link.Name(), FormatBandwidth(link.bytes_per_second, link.network), now.candidate.stage));
  }
  return flips;
}

// The question that teams argue about, where the crossovers above do not answer it.
void AddTwoOrThree(const Searcher& searcher, const SearchResult& result, const Found& now,
                   const std::vector<Flip>& flips, const HardwareProfile& hardware,
                   std::vector<std::string>& lines) {
  auto two_or_three = [](const Candidate& c) { return c.stage == 2 || c.stage == 3; };
  const auto fitting =
      std::count_if(result.stages.begin(), result.stages.end(),
                    [&](const StageBest& s) { return s.candidate && two_or_three(*s.candidate); });
  const bool answered =
      two_or_three(now.candidate) && std::any_of(flips.begin(), flips.end(), [&](const Flip& f) {
        return f.after && two_or_three(f.after->candidate);
      });
  if (fitting < 2 || result.stages.size() == 2 || answered) return;
  SearchInputs inputs = searcher.inputs();
  inputs.space.stages = {2, 3};
  Searcher duo(inputs);
  Question question;
  question.instruction_budget = kInstructionBudget / 6;
  const std::optional<Found> best = duo.Best(question);
  if (!best) return;
  const Link link = LinkOf(duo, best->candidate, hardware);
  std::string text = fmt::format("Of stages 2 and 3 alone: {}", KindText(inputs, best->candidate));
  bool any = false, gave_up = false;
  for (const bool faster : {true, false}) {
    const std::optional<Flip> flip = BandwidthFlip(duo, *best, link.costs, faster, &gave_up);
    if (!flip) continue;
    any = true;
    text += fmt::format("; {}", CrossoverText(inputs, link, *flip));
  }
  if (!any) {
    text += gave_up
                ? fmt::format("; too close to tell which bandwidth {} changes that", link.Name())
                : fmt::format("; no bandwidth {} from 1/64 to 64 times the present changes that",
                              link.Name());
    const std::optional<Flip> batch = BatchFlip(duo, *best, true);
    if (batch && batch->after->candidate.stage != best->candidate.stage) {
      text += fmt::format("; {} sequences a step would: {}", static_cast<int64_t>(batch->at),
                          KindText(inputs, batch->after->candidate));
    }
  }
  lines.push_back(text + ".");
}

}  // namespace

std::string FormatBandwidth(double bytes_per_second, bool bits) {
  const double giga = bytes_per_second / 1e9 * (bits ? 8 : 1);
  const char* unit = bits ? "Gb/s" : "GB/s";
  return giga >= 100 ? fmt::format("{:.0f} {}", giga, unit) : fmt::format("{:.3g} {}", giga, unit);
}

std::vector<std::string> Advise(Searcher& searcher, const SearchResult& result,
                                const HardwareProfile& hardware) {
  ZEROPLAN_CHECK(result.best.has_value());
  const StageBest& best = result.stages[*result.best];
  const SearchInputs& inputs = searcher.inputs();
  const Found now{*best.candidate, *best.estimate.time.tokens_per_second,
                  *best.estimate.time.total_seconds, best.estimate.footprint.gpu_total()};
  std::vector<std::string> lines;
  lines.push_back(Chosen(best.estimate, inputs, searcher.ClusterOf(now.candidate)));
  lines.push_back(TimeShares(best.estimate));
  if (result.gap > 0) {
    lines.push_back(
        fmt::format("Not proven: the search stopped at its budget; a choice left over could be at "
                    "most {:.2g} % "
                    "better.",
                    100 * result.gap));
  }
  AddOthers(searcher, result, lines);
  AddMemoryFlips(searcher, now, lines);
  AddBatchFlips(searcher, now, lines);
  if (inputs.objective == Objective::kThroughput && now.candidate.gpus > 1) {
    const std::vector<Flip> flips = AddBandwidthFlips(searcher, now, hardware, lines);
    AddTwoOrThree(searcher, result, now, flips, hardware, lines);
  }
  return lines;
}

}  // namespace zeroplan
