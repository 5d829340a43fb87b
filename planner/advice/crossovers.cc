#include "planner/advice/crossovers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/units.h"
#include "planner/advice/flips.h"
#include "planner/advice/shard_groups.h"

namespace zeroplan {
namespace {

// The scarcest link of the plan's GPUs, to be scaled.
struct Link : ScarcestLink {
  OtherLink other;
};

Link LinkOf(const ChoiceSearch& searcher, const Candidate& candidate,
            const HardwareProfile& hardware) {
  const ScarcestLink link = ScarcestLinkOf(searcher.ClusterOf(candidate).cluster, hardware);
  return {link, {&hardware, link.network}};
}

// A range of another stage or grouping: "up to 11.5 GB/s the answer is stage 1; at 11.5 GB/s
// it is ...".
struct Crossover {
  std::string text;
  Claim claim;
  int stage = -1;  // -1: it is of shard groups
};

// "; between 400 Gb/s and 800 Gb/s not proven": the rates next to range `i` whose answer is not
// known. `above`: those above it alone.
std::string OpenText(const std::vector<AnswerRange>& ranges, size_t i, const Link& link,
                     bool above) {
  const auto rate = [&](double value) { return FormatBandwidth(value, link.network); };
  const AnswerRange& range = ranges[i];
  std::string text;
  if (range.open_below && !above) {
    text += i > 0 ? fmt::format("; between {} and {} not proven", rate(ranges[i - 1].to),
                                rate(range.from))
                  : fmt::format("; below {} not proven", rate(range.from));
  }
  if (range.open_above) {
    text += i + 1 < ranges.size() ? fmt::format("; between {} and {} not proven", rate(range.to),
                                                rate(ranges[i + 1].from))
                                  : fmt::format("; above {} not proven", rate(range.to));
  }
  return text;
}

// Returns the claim of the range. The answer beyond an end is another one only if it is known.
Claim ClaimOfRates(const AnswerRange& range, const Link& link, double end) {
  Claim claim = ClaimOf(range, end);
  const bool open =
      (end == range.from && range.open_below) || (end == range.to && range.open_above);
  const bool inside = range.from < end && end < range.to;
  if (open || inside) claim.flips_at.reset();
  claim.bandwidth_scale = end / link.bytes_per_second;
  return claim;
}

std::vector<Crossover> CrossoversOf(const SearchInputs& inputs, const Link& link,
                                    const Cluster& cluster, const Answers& answers,
                                    const Sharding& now) {
  std::vector<Crossover> all;
  for (size_t i = 0; i < answers.ranges.size(); ++i) {
    const AnswerRange& range = answers.ranges[i];
    const Found& found = range.found.front();
    const Sharding sharding = ShardingOf(found.candidate, inputs.space);
    if (sharding == now) continue;
    // The present rate if it is inside, as an option that replaces the measured one.
    const double present = link.other.Typed(link.bytes_per_second);
    const double end = std::clamp(present, range.from, range.to);
    const auto rate = [&](double value) { return FormatBandwidth(value, link.network); };
    const std::string where = range.point()
                                  ? fmt::format("at {}", rate(end))
                                  : fmt::format("from {} to {}", rate(range.from), rate(range.to));
    Crossover crossover;
    crossover.stage = sharding.stage.value_or(-1);
    crossover.text =
        range.point()
            ? fmt::format("{} the answer is {}, {}{}", where, KindText(inputs, found.candidate),
                          RateText(found.tokens_per_second), WithinText(range.gap))
            : fmt::format("{} the answer {}; at {} it is {}, {}{}", where,
                          HasText(inputs, sharding, cluster), rate(end),
                          KindText(inputs, found.candidate), RateText(found.tokens_per_second),
                          WithinText(range.gap));
    crossover.text += OpenText(answers.ranges, i, link, /*above=*/false);
    crossover.claim = ClaimOfRates(range, link, end);
    all.push_back(std::move(crossover));
  }
  return all;
}

// "No crossover between nodes: from 1.56 Gb/s to 400 Gb/s, looked at by doubling, stage 2 stays
// the answer". REQUIRES: all ranges are of `here`.
AdviceLine NoCrossover(const SearchInputs& inputs, const Link& link, const Cluster& cluster,
                       const std::vector<AnswerRange>& ranges, const Sharding& here,
                       std::string_view looked) {
  const auto rate = [&](double value) { return FormatBandwidth(value, link.network); };
  AdviceLine line{AdviceKind::kCrossover, "", {}};
  std::vector<std::string> where;
  std::string open;
  double gap = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const AnswerRange& range = ranges[i];
    where.push_back(range.point() ? fmt::format("at {}", rate(range.from))
                                  : fmt::format("from {} to {}", rate(range.from), rate(range.to)));
    open += OpenText(ranges, i, link, /*above=*/i > 0);
    gap = std::max(gap, range.gap);
    const double present = link.other.Typed(link.bytes_per_second);
    line.claims.push_back(ClaimOfRates(range, link, std::clamp(present, range.from, range.to)));
    line.claims.back().flips_at.reset();
  }
  line.text = fmt::format("No crossover {}: {}{} {}{}{}", link.Name(), fmt::join(where, " and "),
                          looked, StaysText(inputs, here, cluster), WithinText(gap), open);
  return line;
}

using AddLine = std::function<void(AdviceLine)>;

std::vector<Crossover> AddCrossovers(ChoiceSearch& searcher, const Found& now, double gap,
                                     const HardwareProfile& hardware, const AddLine& add) {
  const Link link = LinkOf(searcher, now.candidate, hardware);
  const SearchInputs& inputs = searcher.inputs();
  const Answers answers = AnswersByBandwidth(searcher, now, link.other, gap);
  const Cluster& cluster = searcher.ClusterOf(now.candidate).cluster;
  const Sharding here = ShardingOf(now.candidate, inputs.space);
  std::vector<Crossover> crossovers = CrossoversOf(inputs, link, cluster, answers, here);
  // The rate that is meant is what the option takes, which replaces what was measured.
  const std::string now_text =
      fmt::format("; now {}, {} sets it.", FormatBandwidth(link.bytes_per_second, link.network),
                  link.network ? "⟦network⟧" : "⟦intra_node_bandwidth⟧");
  const bool doubled = searcher.needs_are_exact();  // else two rates alone are looked at
  for (const Crossover& crossover : crossovers) {
    add({AdviceKind::kCrossover,
         fmt::format("Crossover {}{} {}{}", link.Name(), doubled ? ", looked at by doubling:" : ":",
                     crossover.text, now_text),
         {crossover.claim}});
  }
  if (!crossovers.empty()) return crossovers;
  if (answers.ranges.empty() && answers.least_gap > 0) {
    add({AdviceKind::kCrossover,
         fmt::format(
             "Where another bandwidth {} would change the answer is not known: the searches "
             "are not proven within {} %; {}.",
             link.Name(), FormatPercent(answers.least_gap), LooksLonger(inputs)),
         {}});
  } else if (answers.ranges.empty() || answers.gave_up) {
    add({AdviceKind::kCrossover,
         GaveUp(fmt::format("the bandwidth {}", link.Name()), searcher.inputs()),
         {}});
  } else {
    AdviceLine line = NoCrossover(inputs, link, cluster, answers.ranges, here,
                                  doubled ? ", looked at by doubling," : "");
    line.text += now_text;
    add(std::move(line));
  }
  return crossovers;
}

// The question that teams argue about, where the crossovers above do not answer it.
void AddTwoOrThree(const ChoiceSearch& searcher, const SearchResult& result, const Found& now,
                   const std::vector<Crossover>& crossovers, const HardwareProfile& hardware,
                   const AddLine& add) {
  auto two_or_three = [](int stage) { return stage == 2 || stage == 3; };
  std::vector<Candidate> candidates;
  for (const StageBest& best : result.stages) {
    if (best.candidate && two_or_three(best.stage)) candidates.push_back(*best.candidate);
  }
  const bool answered = two_or_three(now.candidate.stage) &&
                        std::any_of(crossovers.begin(), crossovers.end(),
                                    [&](const Crossover& c) { return two_or_three(c.stage); });
  if (candidates.size() < 2 || result.stages.size() == 2 || answered || !searcher.needs_are_exact())
    return;
  SearchInputs inputs = searcher.inputs();
  inputs.space.stages = {2, 3};
  const std::unique_ptr<ChoiceSearch> duo = searcher.Like(inputs);
  Question question;
  question.instruction_budget = kInstructionBudget / 6;
  question.first = std::move(candidates);
  const Answer answer = duo->Best(question);
  const std::optional<Found>& best = answer.found;
  if (!best) return;
  const Link link = LinkOf(*duo, best->candidate, hardware);
  std::string text = fmt::format("Of stages 2 and 3 alone: {}{}", KindText(inputs, best->candidate),
                                 WithinText(answer.gap));
  Claim claim;
  claim.stages = {2, 3};
  claim.found = best;
  claim.gap = answer.gap;
  std::vector<Claim> claims = {claim};
  if (inputs.space.groupings.size() > 1) {  // other links change the groups
    add({AdviceKind::kTwoOrThree, text + ".", claims});
    return;
  }
  const Cluster& cluster = duo->ClusterOf(best->candidate).cluster;
  const Answers answers = AnswersByBandwidth(*duo, *best, link.other);
  for (Crossover& other :
       CrossoversOf(inputs, link, cluster, answers, ShardingOf(best->candidate, inputs.space))) {
    text += "; " + other.text;
    claims.push_back(std::move(other.claim));
    claims.back().stages = {2, 3};
  }
  const bool known = answers.ranges.size() == 1 && !answers.ranges.front().open_below &&
                     !answers.ranges.front().open_above;
  if (claims.size() == 1 && known && !answers.gave_up) {
    const AnswerRange& range = answers.ranges.front();
    text += fmt::format("; no bandwidth {} from {} to {} changes that{}", link.Name(),
                        FormatBandwidth(range.from, link.network),
                        FormatBandwidth(range.to, link.network), WithinText(range.gap));
  }
  add({AdviceKind::kTwoOrThree, text + ".", claims});
}

}  // namespace

void AddCrossoverLines(ChoiceSearch& searcher, const SearchResult& result, const Found& now,
                       const HardwareProfile& hardware,
                       const std::function<void(AdviceLine)>& add) {
  const std::vector<Crossover> crossovers = AddCrossovers(searcher, now, result.gap, hardware, add);
  AddTwoOrThree(searcher, result, now, crossovers, hardware, add);
}

}  // namespace zeroplan
