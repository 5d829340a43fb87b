#include "planner/advice/advice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/advice/crossovers.h"
#include "planner/advice/flips.h"
#include "planner/advice/loss_reason.h"
#include "planner/advice/shard_groups.h"
#include "planner/estimate/choices.h"
#include "planner/margin_text.h"
#include "planner/report/report_text.h"

namespace zeroplan {
namespace {

// What SameKind tells apart: "stage 2, optimizer on cpu, full recompute of some layers".
std::string KindName(const SearchInputs& inputs, Candidate kind) {
  kind.optimizer.ratio = 1;
  kind.recompute.every = std::min(kind.recompute.every, 1);
  std::string name = inputs.runtime->Label(SetupOf(kind, inputs.base));
  for (const int layers : {kind.recompute.layers, kind.recompute.offload.layers}) {
    const std::string number = fmt::format(" of {} layers", layers);
    const size_t at = name.find(number);
    if (layers > 0 && at != std::string::npos) name.replace(at, number.size(), " of some layers");
  }
  return name;
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

// "the fastest of all that fits". Ties go to the simplest, and what is known less well has to be
// faster by a margin (Runtime::Merit): then a choice that was judged may be faster.
std::string WhyChosen(const ChoiceSearch& searcher, const Found& now, bool proven) {
  const Objective objective = searcher.inputs().objective;
  const std::vector<JudgedChoice> all = searcher.Judged();
  const bool brim = std::any_of(all.begin(), all.end(), [&](const JudgedChoice& judged) {
    return judged.fits && judged.room != MemoryRoom::kAmple &&
           judged.found.tokens_per_second > now.tokens_per_second;
  });
  const char* of = brim     ? "of what keeps the margin of error of memory free"
                   : proven ? "of all that fits"
                            : "found of what fits";
  if (objective == Objective::kHeadroom) return fmt::format("what leaves most GPU memory {}", of);
  if (objective == Objective::kFewestGpus) return fmt::format("the fewest GPUs {}", of);
  Found fastest = now;
  for (const JudgedChoice& judged : all) {
    if (judged.fits && judged.room == MemoryRoom::kAmple &&
        judged.found.candidate.gpus == now.candidate.gpus &&
        judged.found.tokens_per_second > fastest.tokens_per_second) {
      fastest = judged.found;
    }
  }
  const double gain = fastest.tokens_per_second / now.tokens_per_second - 1;
  if (gain < 5e-5) return fmt::format("the fastest {}", of);
  if (gain <= kTieMargin)
    return proven ? "as fast as any that fits" : "as fast as any that was found";
  if (Merit(fastest) > Merit(now) * (1 + kTieMargin)) {
    return fmt::format("found first of what fits (another that was judged since is {} % faster)",
                       FormatPercent(gain));
  }
  return fmt::format("preferred {} (another is {} % faster, by less than it has to be)", of,
                     FormatPercent(gain));
}

std::string Chosen(const ChoiceEstimate& best, const SearchInputs& inputs, const SearchCluster& at,
                   const std::string& why) {
  const TimeEstimate& t = best.time;
  std::string host;
  if (best.footprint.host.total() > 0 && at.cluster.host_capacity_bytes) {
    host = fmt::format(", {} of {} of host memory", FormatBytes(best.footprint.host.total()),
                       FormatBytes(*at.cluster.host_capacity_bytes));
  }
  const Runtime& runtime = *inputs.runtime;
  return fmt::format(
      "Chosen{}: {}, {}{} on {} GPU{}: {}. {} a step, {} ({} a GPU), MFU {:.3g} %; "
      "{} of {} a GPU{}.",
      runtime.facts().trains_here ? "" : fmt::format(" for {}", runtime.name()),
      runtime.Label(best.setup), BatchText(best.setup.batch), runtime.SettingsText(best.setup),
      best.setup.batch.world_size, best.setup.batch.world_size == 1 ? "" : "s", why,
      FormatSeconds(*t.total_seconds), RateText(*t.tokens_per_second),
      RateText(*t.tokens_per_second / best.setup.batch.world_size), 100 * *t.mfu,
      FormatBytes(best.footprint.totals().gpu_bytes), FormatBytes(at.cluster.gpu_capacity_bytes),
      host);
}

// Where a step's time goes.
std::string TimeShares(const ChoiceEstimate& best) {
  const TimeEstimate& t = best.time;
  std::vector<std::string> parts;
  const auto add = [&](const std::optional<double>& part, const char* what) {
    const double percent = 100 * part.value_or(0) / *t.total_seconds;
    if (percent < 0.005) return;
    parts.push_back(fmt::format("{:.{}f} % {}", percent, percent < 9.95 ? 2 : 1, what));
  };
  add(t.compute_seconds, "compute");
  add(t.exposed_comm_seconds, "waiting for communication");
  add(t.exposed_offload_seconds, "waiting for offload");
  add(t.host_overhead_seconds ? t.host_overhead_seconds : t.optimizer_seconds,
      t.host_overhead_seconds ? "waiting for the Python thread" : "optimizer");
  return fmt::format("A step is {}.", fmt::join(parts, ", "));
}

void AddMargins(const ChoiceEstimate& best, const SearchInputs& inputs, const Cluster& cluster,
                const HardwareProfile& hardware, Lines& lines) {
  for (const std::string& caution : inputs.runtime->Cautions(best, cluster, hardware)) {
    lines.Add(AdviceKind::kMargin, caution);
  }
  if (const std::string margins = MarginTextFor(*inputs.runtime, inputs.model, cluster, hardware);
      !margins.empty()) {
    lines.Add(AdviceKind::kMargin, "Margin of error. " + margins);
  }
  if (std::string beyond = BeyondZero(best, cluster); !beyond.empty()) {
    lines.Add(AdviceKind::kMargin, "Beyond ZeRO alone. " + beyond);
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
  const std::string from = FormatTypedBytes(TypedBytes(bytes, Rounding::kUp));
  if (answer.gap > 0 || !searcher.needs_are_exact()) {
    return fmt::format(". With {} a GPU it fits, as {}", from,
                       KindText(searcher.inputs(), answer.found->candidate));
  }
  Claim none;
  none.gpu_memory_bytes = bytes - 1;
  none.stages = {stage};
  claims.push_back(none);
  return fmt::format(". It fits from {} a GPU on, as {}", from,
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
                fmt::format("{} does not fit. Its closest choice is {}: {}.",
                            runtime.StageName(other.stage),
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

// "stage 1, at 106.9 GB micro-batch 14 x 4 micro-steps and 115K tokens/s"; `end`: where the range
// comes nearest to the present value, empty where it is one value alone.
std::string AnswerText(const SearchInputs& inputs, const AnswerRange& range,
                       const std::string& end) {
  if (range.found.empty()) return range.gap == 0 ? "nothing fits" : "nothing was found that fits";
  if (range.found.size() > 1) {
    std::vector<std::string> kinds;
    for (const Found& found : range.found) kinds.push_back(KindName(inputs, found.candidate));
    return fmt::format("the answer changes between {}", fmt::join(kinds, " and "));
  }
  const Found& found = range.found.front();
  if (range.kind_alone) return "the answer is " + KindName(inputs, found.candidate);
  if (end.empty()) {
    return fmt::format("the answer is {}, {}{}", KindText(inputs, found.candidate),
                       RateText(found.tokens_per_second), WithinText(range.gap));
  }
  return fmt::format("the answer is {}; at {} it is {}, {}{}", KindName(inputs, found.candidate),
                     end, KindText(inputs, found.candidate), RateText(found.tokens_per_second),
                     WithinText(range.gap));
}

// Smaller differences of two rates are not told.
constexpr double kLeastGain = 5e-4;

// What all the memory in the world is worth to the present answer, where no other kind wins.
void AddMemoryGain(ChoiceSearch& searcher, const Found& now, Lines& lines) {
  Question question;
  question.objective = searcher.inputs().objective;
  question.gpu_capacity_bytes =
      kMostMemory * searcher.ClusterOf(now.candidate).cluster.gpu_capacity_bytes;
  question.instruction_budget = kInstructionBudget / 4;
  const Answer more = searcher.Best(question);
  if (!more.found) return;
  Claim claim;
  claim.gpu_memory_bytes = question.gpu_capacity_bytes;
  claim.found = more.found;
  claim.gap = more.gap;
  const double gain = more.found->tokens_per_second / now.tokens_per_second - 1;
  if (gain < kLeastGain) {
    lines.Add(AdviceKind::kMemory,
              fmt::format("More GPU memory (up to {} times) would gain nothing{}.", kMostMemory,
                          WithinText(more.gap)),
              {claim});
    return;
  }
  lines.Add(AdviceKind::kMemory,
            fmt::format("More GPU memory would gain {} %, with {} times as much: {}, {}{}.",
                        FormatPercent(gain), kMostMemory,
                        KindText(searcher.inputs(), more.found->candidate),
                        RateText(more.found->tokens_per_second), WithinText(more.gap)),
            {claim});
}

void AddMemoryAnswers(ChoiceSearch& searcher, const Found& now, Lines& lines) {
  const auto present =
      static_cast<double>(searcher.ClusterOf(now.candidate).cluster.gpu_capacity_bytes);
  const Answers answers = AnswersByMemory(searcher, now);
  const auto text = [](double bytes) { return FormatTypedBytes(static_cast<uint64_t>(bytes)); };
  const AnswerRange* here = nullptr;
  std::vector<const AnswerRange*> above, below;  // the nearest first
  std::vector<std::string> same;                 // single memories where it stays
  double same_gap = 0;                           // the largest of theirs
  for (const AnswerRange& range : answers.ranges) {
    const bool stays =
        range.found.size() == 1 && SameKind(range.found.front().candidate, now.candidate);
    if (range.from <= present && present <= range.to) {
      if (stays) here = &range;
      continue;
    }
    if (range.point() && stays) {
      same.push_back(text(range.from));
      same_gap = std::max(same_gap, range.gap);
      continue;
    }
    if (range.from > present) above.push_back(&range);
    if (range.to < present) below.insert(below.begin(), &range);
  }
  const auto claim_of = [&](const AnswerRange& range) {
    const double end = range.from > present ? range.from : range.to;
    Claim claim = ClaimOf(range, end);
    claim.gpu_memory_bytes = static_cast<uint64_t>(end);
    return claim;
  };
  if (here != nullptr && here->from < here->to) {
    // At the present memory a search that looked one way only begins.
    const std::string where =
        here->to <= present    ? fmt::format("With less memory, down to {}", text(here->from))
        : here->from < present ? fmt::format("From {} to {}", text(here->from), text(here->to))
                               : fmt::format("With more memory, up to {}", text(here->to));
    Claim claim = claim_of(*here);
    claim.flips_at.reset();
    lines.Add(AdviceKind::kMemory,
              fmt::format("{} a GPU {} stays the answer.", where,
                          KindName(searcher.inputs(), now.candidate)),
              {claim});
  }
  if (!same.empty()) {
    lines.Add(AdviceKind::kMemory,
              fmt::format("With {} a GPU {} stays the answer{}.", fmt::join(same, ", "),
                          KindName(searcher.inputs(), now.candidate), WithinText(same_gap)));
  }
  for (const auto* side : {&above, &below}) {
    for (size_t i = 0; i < side->size(); ++i) {
      const AnswerRange& range = *(*side)[i];
      const std::string end = text(side == &above ? range.from : range.to);
      std::string where =
          range.point()     ? fmt::format("With {} a GPU", end)
          : range.from == 0 ? fmt::format("Up to {} a GPU", end)
                            : fmt::format("From {} to {} a GPU", text(range.from), text(range.to));
      const std::string what = fmt::format(
          "{} {}", where, AnswerText(searcher.inputs(), range, range.point() ? "" : end));
      const bool last = i + 1 == side->size();
      // The nearest and the last; claims has them all.
      const bool before_nothing = i + 2 == side->size() && side->back()->found.empty();
      if (i == 0 || last || before_nothing || range.point()) {
        lines.Add(AdviceKind::kMemory, what + ".", {claim_of(range)});
      } else {
        lines.lines.back().claims.push_back(claim_of(range));
      }
    }
  }
  if (answers.gave_up && above.empty() && here == nullptr) {
    lines.Add(AdviceKind::kMemory, GaveUp("GPU memory", searcher.inputs()));
  } else if (above.empty() && searcher.inputs().objective == Objective::kThroughput) {
    AddMemoryGain(searcher, now, lines);
  }
}

// The ranges either side of the present value, up to the first whose answer is not known.
std::vector<const AnswerRange*> KnownRanges(const std::vector<AnswerRange>& ranges,
                                            double present) {
  std::vector<const AnswerRange*> known;
  for (const AnswerRange& range : ranges) {
    if (range.gap > kMostGap && range.from > present) break;
    if (range.gap > kMostGap) known.clear();
    if (range.gap <= kMostGap) known.push_back(&range);
  }
  return known;
}

// `gap`: that of `now`.
void AddBatchAnswers(ChoiceSearch& searcher, const Found& now, double gap,
                     const std::optional<KnownBatches>& known, Lines& lines) {
  const Answers answers = known ? known->answers : AnswersByBatch(searcher, now);
  const auto present = static_cast<double>(now.candidate.micro_batch * now.candidate.grad_accum *
                                           now.candidate.data_ranks());
  double least = present, most = present;                     // where it stays what it is
  double slowest = now.tokens_per_second, fastest = slowest;  // there
  std::vector<Claim> claims;
  const auto claim_of = [](const AnswerRange& range) {
    Claim claim = ClaimOf(range, range.from);
    claim.global_batch = static_cast<int64_t>(range.from);
    return claim;
  };
  for (const AnswerRange* at : KnownRanges(answers.ranges, present)) {
    const AnswerRange& range = *at;
    if (!range.found.empty() && SameKind(range.found.front().candidate, now.candidate)) {
      least = std::min(least, range.from);
      most = std::max(most, range.from);
      slowest = std::min(slowest, range.found.front().tokens_per_second);
      fastest = std::max(fastest, range.found.front().tokens_per_second);
      gap = std::max(gap, range.gap);
      claims.push_back(claim_of(range));
      continue;
    }
    if (known &&
        std::count(known->said.begin(), known->said.end(), static_cast<int64_t>(range.from)) > 0) {
      continue;
    }
    Claim claim = claim_of(range);
    claim.flips_at = range.from;
    lines.Add(AdviceKind::kBatch,
              fmt::format("With {} sequence{} a step {}.", static_cast<int64_t>(range.from),
                          range.from == 1 ? "" : "s", AnswerText(searcher.inputs(), range, "")),
              {claim});
  }
  if (answers.gave_up) {
    lines.Add(AdviceKind::kBatch, GaveUp("the batch", searcher.inputs()));
  } else if (least < most) {
    lines.Add(AdviceKind::kBatch,
              fmt::format("From {} to {} sequences a step, looked at by doubling, {} stays the "
                          "answer, with {} to {}{}.",
                          static_cast<int64_t>(least), static_cast<int64_t>(most),
                          KindName(searcher.inputs(), now.candidate), FormatRate(slowest),
                          RateText(fastest), WithinText(gap)),
              claims);
  }
}

}  // namespace

std::string_view AdviceKindName(AdviceKind kind) {
  constexpr std::string_view kNames[] = {
      "fewer",  "chosen", "shares",    "groups",       "margin", "not-proven", "stage",
      "memory", "batch",  "crossover", "two-or-three", "states", "products",   "sequences"};
  static_assert(std::size(kNames) == static_cast<size_t>(AdviceKind::kSequences) + 1);
  return kNames[static_cast<size_t>(kind)];
}

std::string BrimText(const ChoiceSearch& searcher, const ChoiceEstimate& best) {
  if (best.room != MemoryRoom::kAmple) return "";
  std::optional<Found> fastest;
  double rate = *best.time.tokens_per_second * (1 + kTieMargin);
  for (const JudgedChoice& judged : searcher.Judged()) {
    if (!judged.fits || judged.room == MemoryRoom::kAmple ||
        judged.found.tokens_per_second <= rate ||
        judged.found.candidate.gpus != best.setup.batch.world_size) {
      continue;
    }
    rate = judged.found.tokens_per_second;
    fastest = judged.found;
  }
  if (!fastest) return "";
  return fmt::format("To the brim: {}, {}, {} % faster, may run out of memory.",
                     KindText(searcher.inputs(), fastest->candidate), RateText(rate),
                     FormatPercent(rate / *best.time.tokens_per_second - 1));
}

std::string RateText(double tokens_per_second) {
  return fmt::format("{} tokens/s", FormatRate(tokens_per_second));
}

std::string KindText(const SearchInputs& inputs, const Candidate& candidate) {
  return inputs.runtime->ChoiceText(SetupOf(candidate, inputs.base));
}

std::string LooksLonger(const SearchInputs& inputs) {
  return fmt::format("⟦effort⟧ {:g} looks longer", 4 * inputs.effort);
}

std::string GaveUp(std::string_view what, const SearchInputs& inputs) {
  return fmt::format(
      "Not looked further for where {} would change the answer: programs of this size take too "
      "long; {}.",
      what, LooksLonger(inputs));
}

Claim ClaimOf(const AnswerRange& range, double end) {
  Claim claim;
  if (!range.found.empty()) {
    claim.found = range.found.front();
    claim.or_else.assign(range.found.begin() + 1, range.found.end());
  }
  claim.gap = range.gap;
  claim.holds_from = range.from;
  claim.holds_to = range.to;
  if (!range.point()) claim.flips_at = end;
  return claim;
}

std::string WithinText(double gap) {
  return gap > 0 ? fmt::format(" (not proven: within {} %)", FormatPercent(gap)) : "";
}

Advice Advise(ChoiceSearch& searcher, const SearchResult& result, const HardwareProfile& hardware,
              const std::function<void(const AdviceLine&)>& emit, bool quick,
              const std::optional<KnownBatches>& batches) {
  ZEROPLAN_CHECK(result.best.has_value());
  const StageBest& best = result.stages[*result.best];
  const SearchInputs& inputs = searcher.inputs();
  const Found now = FoundOf(best, *inputs.runtime);
  Lines lines(emit);
  Claim chosen;
  chosen.found = now;
  chosen.gap = result.gap;
  lines.Add(AdviceKind::kChosen,
            Chosen(best.estimate, inputs, searcher.ClusterOf(now.candidate),
                   WhyChosen(searcher, now, result.gap == 0)),
            {chosen});
  lines.Add(AdviceKind::kShares, TimeShares(best.estimate));
  if (result.gap > 0) {
    lines.Add(AdviceKind::kNotProven,
              fmt::format("Not proven: the search stopped at its budget; a choice left over could "
                          "be at most {} % better. {}.",
                          FormatPercent(result.gap), LooksLonger(searcher.inputs())));
  }
  AddOthers(searcher, result, quick, lines);
  if (std::string text = BrimText(searcher, best.estimate); !text.empty()) {
    lines.Add(AdviceKind::kMargin, std::move(text));
  }
  if (std::string text = GroupMemoryText(best.estimate, inputs); !text.empty()) {
    lines.Add(AdviceKind::kGroups, std::move(text));
  }
  AddMargins(best.estimate, inputs, searcher.ClusterOf(now.candidate).cluster, hardware, lines);
  if (!quick) {
    AddMemoryAnswers(searcher, now, lines);
    AddBatchAnswers(searcher, now, result.gap, batches, lines);
    if (inputs.objective == Objective::kThroughput && now.candidate.gpus > 1) {
      AddCrossoverLines(searcher, result, now, hardware, [&](AdviceLine line) {
        lines.Add(line.kind, std::move(line.text), std::move(line.claims));
      });
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
