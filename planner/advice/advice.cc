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

std::string RateText(double tokens_per_second) {
  return fmt::format("{} tokens/s", FormatCount(static_cast<uint64_t>(tokens_per_second)));
}

std::string KindText(const SearchInputs& inputs, const Candidate& candidate) {
  return inputs.runtime->ChoiceText(SetupOf(candidate, inputs.base));
}

// " (within 2.1 %)" where an answer is not proven.
std::string Within(double gap) {
  return gap > 0 ? fmt::format(" (not proven: within {:.2g} %)", 100 * gap) : "";
}

// REQUIRES: something of the stage fits.
Found FoundOf(const StageBest& stage, const Runtime& runtime) {
  const TimeEstimate& time = stage.estimate.time;
  return {*stage.candidate, *time.tokens_per_second, *time.total_seconds,
          stage.estimate.footprint.gpu_total(), runtime.Merit(stage.estimate)};
}

class Lines {
 public:
  explicit Lines(const std::function<void(const AdviceLine&)>& emit) : emit_(emit) {}

  void Add(AdviceKind kind, std::string text, std::vector<Claim> claims = {}) {
    lines.push_back({kind, std::move(text), std::move(claims)});
    if (emit_) emit_(lines.back());
  }

  std::vector<AdviceLine> lines;

 private:
  const std::function<void(const AdviceLine&)>& emit_;
};

std::string Chosen(const ChoiceEstimate& best, const SearchInputs& inputs, const SearchCluster& at,
                   bool proven) {
  const TimeEstimate& t = best.time;
  std::string host;
  if (best.footprint.host.total() > 0 && at.cluster.host_capacity_bytes) {
    host = fmt::format(", {} of {} of host memory", FormatBytes(best.footprint.host.total()),
                       FormatBytes(*at.cluster.host_capacity_bytes));
  }
  const char* why = inputs.objective == Objective::kThroughput ? "the fastest"
                    : inputs.objective == Objective::kHeadroom ? "what leaves most GPU memory"
                                                               : "the fewest GPUs";
  const char* of = proven ? "of all that fits" : "found of what fits";
  const Runtime& runtime = *inputs.runtime;
  return fmt::format(
      "Chosen{}: {}, {}{} on {} GPU{}: {} {}. {} a step, {} ({} a GPU), MFU {:.3g} %; "
      "{} of {} a GPU{}.",
      runtime.has_programs() ? "" : fmt::format(" for {}", runtime.name()),
      runtime.Label(best.setup), BatchText(best.setup.batch), runtime.SettingsText(best.setup),
      best.setup.batch.world_size, best.setup.batch.world_size == 1 ? "" : "s", why, of,
      FormatSeconds(*t.total_seconds), RateText(*t.tokens_per_second),
      RateText(*t.tokens_per_second / best.setup.batch.world_size), 100 * *t.mfu,
      FormatBytes(best.footprint.totals().gpu_bytes), FormatBytes(at.cluster.gpu_capacity_bytes),
      host);
}

// Where a step's time goes.
std::string TimeShares(const ChoiceEstimate& best) {
  const TimeEstimate& t = best.time;
  auto share = [&](const std::optional<double>& part) {
    const double percent = 100 * *part / *t.total_seconds;
    return fmt::format("{:.{}f}", percent, percent < 9.95 ? 2 : 1);
  };
  const std::optional<double>& last =
      t.host_overhead_seconds ? t.host_overhead_seconds : t.optimizer_seconds;
  return fmt::format(
      "A step is {} % compute, {} % waiting for communication, {} % waiting for offload, {} % {}.",
      share(t.compute_seconds), share(t.exposed_comm_seconds), share(t.exposed_offload_seconds),
      share(last), t.host_overhead_seconds ? "waiting for the Python thread" : "optimizer");
}

void AddMargins(const ChoiceEstimate& best, const SearchInputs& inputs, const Cluster& cluster,
                Lines& lines) {
  for (const std::string& caution : inputs.runtime->Cautions(best, cluster)) {
    lines.Add(AdviceKind::kMargin, caution);
  }
  if (const std::string margins = inputs.runtime->MarginText(); !margins.empty()) {
    lines.Add(AdviceKind::kMargin, "Margin of error. " + margins);
  }
}

// The least GPU memory at which a stage that does not fit would.
std::string FitsFrom(ChoiceSearch& searcher, int stage, std::vector<Claim>& claims) {
  Question question;
  question.objective = Objective::kHeadroom;
  question.gpu_capacity_bytes = UINT64_MAX / 4;
  question.instruction_budget = kInstructionBudget / 20;
  question.among = [stage](const Candidate& c) { return c.stage == stage; };
  const Answer answer = searcher.Best(question);
  if (!answer.found) return "";
  const uint64_t bytes = searcher.GpuBytesNeeded(*answer.found);
  if (answer.gap > 0 || !searcher.needs_are_exact()) {
    return fmt::format("; with {} a GPU it would fit, as {}", FormatBytes(bytes),
                       KindText(searcher.inputs(), answer.found->candidate));
  }
  Claim none;
  none.gpu_memory_bytes = bytes - 1;
  none.stages = {stage};
  claims.push_back(none);
  return fmt::format("; it would fit from {} a GPU on, as {}", FormatBytes(bytes),
                     KindText(searcher.inputs(), answer.found->candidate));
}

void AddOthers(ChoiceSearch& searcher, const SearchResult& result, bool quick, Lines& lines) {
  const ChoiceEstimate& best = result.stages[*result.best].estimate;
  const Runtime& runtime = *searcher.inputs().runtime;
  for (size_t s = 0; s < result.stages.size(); ++s) {
    if (s == *result.best) continue;
    const StageBest& other = result.stages[s];
    if (!other.can_run()) continue;
    std::vector<Claim> claims;
    if (!other.candidate) {
      const std::string why =
          other.estimate.fits
              ? fmt::format("takes {}, and what is to be left free beside it does not fit",
                            FormatBytes(other.estimate.footprint.gpu_total()))
              : other.estimate.why_not + (quick ? "" : FitsFrom(searcher, other.stage, claims));
      lines.Add(AdviceKind::kStage,
                fmt::format("{} does not fit. Closest: {}: {}.", runtime.StageName(other.stage),
                            runtime.ChoiceText(other.estimate.setup), why),
                claims);
      continue;
    }
    Claim claim;
    claim.stages = {other.stage};
    claim.found = FoundOf(other, runtime);
    if (other.proven) claims.push_back(claim);
    std::string text = fmt::format(
        "{}{}: {}{}.", other.proven ? "" : "About: ", runtime.ChoiceText(other.estimate.setup),
        LossReason(other.estimate, best, searcher.inputs()),
        searcher.inputs().objective == Objective::kThroughput
            ? runtime.WhyNotTaken(other.estimate, best)
            : "");
    text[0] = static_cast<char>(std::toupper(text[0]));
    lines.Add(AdviceKind::kStage, text, claims);
  }
}

std::string FlipText(const SearchInputs& inputs, const Flip& flip) {
  if (!flip.after) return flip.gap == 0 ? "nothing fits" : "nothing was found that fits";
  return fmt::format("the answer is {}, {}{}", KindText(inputs, flip.after->candidate),
                     RateText(flip.after->tokens_per_second), Within(flip.gap));
}

constexpr const char* kGaveUp =
    "Not looked further for where {} would change the answer: programs of this size take too long.";

// What all the memory in the world is worth to the present answer, where no other kind wins.
void AddMemoryGain(ChoiceSearch& searcher, const Found& now, Lines& lines) {
  constexpr uint64_t kMore = 16;
  Question question;
  question.objective = searcher.inputs().objective;
  question.gpu_capacity_bytes =
      kMore * searcher.ClusterOf(now.candidate).cluster.gpu_capacity_bytes;
  question.instruction_budget = kInstructionBudget / 4;
  const Answer more = searcher.Best(question);
  if (!more.found) return;
  Claim claim;
  claim.gpu_memory_bytes = question.gpu_capacity_bytes;
  claim.found = more.found;
  claim.gap = more.gap;
  const double gain = Merit(*more.found) / Merit(now) - 1;
  if (gain <= kTieMargin) {
    lines.Add(AdviceKind::kMemory,
              fmt::format("More GPU memory (up to {} times) would gain nothing{}.", kMore,
                          Within(more.gap)),
              {claim});
    return;
  }
  lines.Add(
      AdviceKind::kMemory,
      fmt::format("More GPU memory would gain {:.2g} % at most, with {} times as much: {}, {}{}.",
                  100 * gain, kMore, KindText(searcher.inputs(), more.found->candidate),
                  RateText(more.found->tokens_per_second), Within(more.gap)),
      {claim});
}

// "150 GB a GPU (281 MB more)" where three digits do not tell it from what there is.
std::string OfGpu(uint64_t bytes, uint64_t now) {
  const std::string text = FormatBytes(bytes);
  if (text != FormatBytes(now) || bytes == now) return text + " a GPU";
  return bytes > now ? fmt::format("{} a GPU ({} more)", text, FormatBytes(bytes - now))
                     : fmt::format("{} a GPU ({} less)", text, FormatBytes(now - bytes));
}

void AddMemoryFlips(ChoiceSearch& searcher, const Found& now, Lines& lines) {
  for (const bool larger : {true, false}) {
    bool gave_up = false;
    const std::optional<Flip> flip = MemoryFlip(searcher, now, larger, &gave_up);
    if (flip) {
      Claim claim;
      claim.gpu_memory_bytes = static_cast<uint64_t>(flip->at) - (larger ? 0 : 1);
      claim.found = flip->after;
      claim.gap = flip->gap;
      claim.flips_at = flip->at;
      lines.Add(AdviceKind::kMemory,
                fmt::format("{} {} {}.", larger ? "From" : "Below",
                            OfGpu(static_cast<uint64_t>(flip->at),
                                  searcher.ClusterOf(now.candidate).cluster.gpu_capacity_bytes),
                            FlipText(searcher.inputs(), *flip)),
                {claim});
    } else if (gave_up) {
      lines.Add(AdviceKind::kMemory,
                fmt::format(fmt::runtime(kGaveUp), larger ? "more GPU memory" : "less GPU memory"));
    } else if (larger && searcher.inputs().objective == Objective::kThroughput) {
      AddMemoryGain(searcher, now, lines);
    }
  }
}

void AddBatchFlips(ChoiceSearch& searcher, const Found& now, Lines& lines) {
  bool any = false, gave_up = false;
  for (const bool larger : {true, false}) {
    const std::optional<Flip> flip = BatchFlip(searcher, now, larger, &gave_up);
    if (!flip) continue;
    any = true;
    Claim claim;
    claim.global_batch = static_cast<int64_t>(flip->at);
    claim.found = flip->after;
    claim.gap = flip->gap;
    claim.flips_at = flip->at;
    lines.Add(AdviceKind::kBatch,
              fmt::format("With {} sequences a step {}.", static_cast<int64_t>(flip->at),
                          FlipText(searcher.inputs(), *flip)),
              {claim});
  }
  if (gave_up) {
    lines.Add(AdviceKind::kBatch, fmt::format(fmt::runtime(kGaveUp), "the batch"));
  } else if (!any) {
    lines.Add(AdviceKind::kBatch,
              "With the batch doubled or halved, up to 64 times either way, stage, offload and "
              "recompute stay what they are.");
  }
}

// The scarcest link of the plan's GPUs, to be scaled.
struct Link : ScarcestLink {
  ScaledLink scaled;
};

Link LinkOf(const ChoiceSearch& searcher, const Candidate& candidate,
            const HardwareProfile& hardware) {
  const ScarcestLink link = ScarcestLinkOf(searcher.ClusterOf(candidate).cluster, hardware);
  return {link, {&hardware, link.network}};
}

// "below 114 Gb/s between nodes (each node, each direction) the answer is ... (now 1600 Gb/s)".
std::string CrossoverText(const SearchInputs& inputs, const Link& link, const Flip& flip) {
  return fmt::format("{} {} {} {} (now {})", flip.at > 1 ? "above" : "below",
                     FormatBandwidth(flip.at * link.bytes_per_second, link.network), link.Name(),
                     FlipText(inputs, flip), FormatBandwidth(link.bytes_per_second, link.network));
}

Claim ClaimOf(const Flip& flip) {
  Claim claim;
  claim.bandwidth_scale = flip.at > 1 ? flip.at * kCrossoverMargin : flip.at / kCrossoverMargin;
  claim.found = flip.after;
  claim.gap = flip.gap;
  claim.flips_at = flip.at;
  return claim;
}

// "stage 2".
std::string StageText(const ChoiceSearch& searcher, const Found& now) {
  std::string text = searcher.inputs().runtime->StageName(now.candidate.stage);
  text.front() = static_cast<char>(std::tolower(text.front()));
  return text;
}

std::vector<Flip> AddBandwidthFlips(ChoiceSearch& searcher, const Found& now,
                                    const HardwareProfile& hardware, Lines& lines) {
  const Link link = LinkOf(searcher, now.candidate, hardware);
  std::vector<Flip> flips;
  bool gave_up = false;
  for (const bool faster : {true, false}) {
    const std::optional<Flip> flip = BandwidthFlip(searcher, now, link.scaled, faster, &gave_up);
    if (!flip) continue;
    flips.push_back(*flip);
    lines.Add(AdviceKind::kCrossover,
              fmt::format("Crossover: {}.", CrossoverText(searcher.inputs(), link, *flip)),
              {ClaimOf(*flip)});
  }
  if (flips.empty() && gave_up) {
    lines.Add(AdviceKind::kCrossover,
              fmt::format("Crossover {}: not settled, stages are too close to tell within the "
                          "search's budget.",
                          link.Name()));
  } else if (flips.empty()) {
    lines.Add(AdviceKind::kCrossover,
              fmt::format("No crossover found: with 1/64, 1/8, 8 and 64 times the bandwidth {} "
                          "(now {}) {} stays the answer.",
                          link.Name(), FormatBandwidth(link.bytes_per_second, link.network),
                          StageText(searcher, now)));
  }
  return flips;
}

// The question that teams argue about, where the crossovers above do not answer it.
void AddTwoOrThree(const ChoiceSearch& searcher, const SearchResult& result, const Found& now,
                   const std::vector<Flip>& flips, const HardwareProfile& hardware, Lines& lines) {
  auto two_or_three = [](const Candidate& c) { return c.stage == 2 || c.stage == 3; };
  const auto fitting =
      std::count_if(result.stages.begin(), result.stages.end(),
                    [&](const StageBest& s) { return s.candidate && two_or_three(*s.candidate); });
  const bool answered =
      two_or_three(now.candidate) && std::any_of(flips.begin(), flips.end(), [&](const Flip& f) {
        return f.after && two_or_three(f.after->candidate);
      });
  if (fitting < 2 || result.stages.size() == 2 || answered || !searcher.needs_are_exact()) return;
  SearchInputs inputs = searcher.inputs();
  inputs.space.stages = {2, 3};
  const std::unique_ptr<ChoiceSearch> duo = searcher.Like(inputs);
  Question question;
  question.instruction_budget = kInstructionBudget / 6;
  const Answer answer = duo->Best(question);
  const std::optional<Found>& best = answer.found;
  if (!best) return;
  const Link link = LinkOf(*duo, best->candidate, hardware);
  std::string text = fmt::format("Of stages 2 and 3 alone: {}{}", KindText(inputs, best->candidate),
                                 Within(answer.gap));
  Claim claim;
  claim.stages = {2, 3};
  claim.found = best;
  claim.gap = answer.gap;
  std::vector<Claim> claims = {claim};
  bool any = false, gave_up = false;
  for (const bool faster : {true, false}) {
    const std::optional<Flip> flip = BandwidthFlip(*duo, *best, link.scaled, faster, &gave_up);
    if (!flip) continue;
    any = true;
    text += fmt::format("; {}", CrossoverText(inputs, link, *flip));
    claims.push_back(ClaimOf(*flip));
    claims.back().stages = {2, 3};
  }
  if (!any) {
    text += gave_up
                ? fmt::format("; too close to tell which bandwidth {} changes that", link.Name())
                : fmt::format("; 1/64, 1/8, 8 and 64 times the bandwidth {} do not change that",
                              link.Name());
    const std::optional<Flip> batch = BatchFlip(*duo, *best, true);
    if (batch && batch->after->candidate.stage != best->candidate.stage) {
      text += fmt::format("; {} sequences a step would: {}", static_cast<int64_t>(batch->at),
                          KindText(inputs, batch->after->candidate));
      claims.push_back({});
      claims.back().global_batch = static_cast<int64_t>(batch->at);
      claims.back().stages = {2, 3};
      claims.back().found = batch->after;
      claims.back().gap = batch->gap;
    }
  }
  lines.Add(AdviceKind::kTwoOrThree, text + ".", claims);
}

}  // namespace

std::string_view ScarcestLink::Name() const {
  return network ? "between nodes (each node, each direction)"
                 : "between the GPUs (each one, each direction)";
}

ScarcestLink ScarcestLinkOf(const Cluster& cluster, const HardwareProfile& hardware) {
  const bool network = cluster.gpus > cluster.gpus_per_node;
  return {network,
          network ? hardware.network->bandwidth_per_node.value : hardware.node.gpu_link.value};
}

std::string FormatBandwidth(double bytes_per_second, bool bits) {
  const double giga = bytes_per_second / 1e9 * (bits ? 8 : 1);
  const char* unit = bits ? "Gb/s" : "GB/s";
  return giga >= 100 ? fmt::format("{:.0f} {}", giga, unit) : fmt::format("{:.3g} {}", giga, unit);
}

std::string_view AdviceKindName(AdviceKind kind) {
  switch (kind) {
    case AdviceKind::kChosen:
      return "chosen";
    case AdviceKind::kShares:
      return "shares";
    case AdviceKind::kMargin:
      return "margin";
    case AdviceKind::kNotProven:
      return "not-proven";
    case AdviceKind::kStage:
      return "stage";
    case AdviceKind::kMemory:
      return "memory";
    case AdviceKind::kBatch:
      return "batch";
    case AdviceKind::kCrossover:
      return "crossover";
    case AdviceKind::kTwoOrThree:
      return "two-or-three";
  }
  return "?";
}

Advice Advise(ChoiceSearch& searcher, const SearchResult& result, const HardwareProfile& hardware,
              const std::function<void(const AdviceLine&)>& emit, bool quick) {
  ZEROPLAN_CHECK(result.best.has_value());
  const StageBest& best = result.stages[*result.best];
  const SearchInputs& inputs = searcher.inputs();
  const Found now = FoundOf(best, *inputs.runtime);
  Lines lines(emit);
  Claim chosen;
  chosen.found = now;
  chosen.gap = result.gap;
  lines.Add(AdviceKind::kChosen,
            Chosen(best.estimate, inputs, searcher.ClusterOf(now.candidate), result.gap == 0),
            {chosen});
  lines.Add(AdviceKind::kShares, TimeShares(best.estimate));
  AddMargins(best.estimate, inputs, searcher.ClusterOf(now.candidate).cluster, lines);
  if (result.gap > 0) {
    lines.Add(AdviceKind::kNotProven,
              fmt::format("Not proven: the search stopped at its budget; a choice left over could "
                          "be at most {:.2g} % better. @@effort 4 looks longer.",
                          100 * result.gap));
  }
  AddOthers(searcher, result, quick, lines);
  if (!quick) {
    AddMemoryFlips(searcher, now, lines);
    AddBatchFlips(searcher, now, lines);
    if (inputs.objective == Objective::kThroughput && now.candidate.gpus > 1) {
      const std::vector<Flip> flips = AddBandwidthFlips(searcher, now, hardware, lines);
      AddTwoOrThree(searcher, result, now, flips, hardware, lines);
    }
  }
  Advice advice{std::move(lines.lines)};
  if (inputs.objective == Objective::kThroughput) {
    const std::optional<Found> known = searcher.BestKnown();
    advice.outdated = known && Merit(*known) > Merit(now) * (1 + kTieMargin);
  }
  return advice;
}

}  // namespace zeroplan
