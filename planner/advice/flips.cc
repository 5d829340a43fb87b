#include "planner/advice/flips.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/units.h"

namespace zeroplan {
namespace {

// One answer of many, so that less will do.
constexpr uint64_t kBudget = kInstructionBudget / 4;
constexpr int64_t kMaxBatch = 2'147'483'647;  // sequences a step; no one asks for more
// Narrower ranges are joined to one in which the answer changes.
constexpr double kNarrow = 1.02;
// Bandwidths are looked at by halving and doubling, so often; crossovers are sought this closely.
constexpr int kOctavesBelow = 6, kOctavesAbove = 4;
constexpr double kNear = 1.02;
// A range of bandwidths up to here times where it begins is short.
constexpr double kShort = 1.25;

bool SameKinds(const std::optional<Found>& a, const std::optional<Found>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return SameKind(a->candidate, b->candidate);
}

// The ends of `range` as one types them; none where no such figure lies in it.
std::optional<AnswerRange> Typed(const MemoryAnswer& range, uint64_t present, uint64_t most) {
  AnswerRange typed;
  typed.gap = range.gap;
  if (range.from == range.to) {
    typed.from = typed.to = static_cast<double>(range.from);
    return typed;
  }
  // The present memory and the most that was looked at were not rounded either.
  const uint64_t from =
      range.from == 0 || range.from == present ? range.from : TypedBytes(range.from, Rounding::kUp);
  const uint64_t to = range.to >= most ? range.to : TypedBytes(range.to - 1, Rounding::kDown);
  if (from > to) return std::nullopt;
  typed.from = static_cast<double>(from);
  typed.to = static_cast<double>(to);
  return typed;
}

}  // namespace

bool SameKind(const Candidate& a, const Candidate& b) {
  const auto recompute = [](const Candidate& candidate) {
    RecomputeConfig kind = MixOf(candidate.recompute);
    kind.every = std::min(kind.every, 1);
    return kind;
  };
  return a.sequence_ranks == b.sequence_ranks && a.stage == b.stage && a.grouping == b.grouping &&
         a.optimizer.device == b.optimizer.device && a.param == b.param &&
         recompute(a) == recompute(b) && a.states == b.states &&
         Inexactness(a.products) == Inexactness(b.products);
}

Sharding ShardingOf(const Candidate& candidate, const SearchSpace& space) {
  if (space.groupings.size() > 1) return {std::nullopt, candidate.grouping.ranks};
  return {candidate.stage, candidate.grouping.ranks};
}

uint64_t TypedBytes(uint64_t bytes, Rounding rounding) {
  uint64_t unit = 1;
  while (bytes / unit >= 10'000) unit *= 10;
  const uint64_t down = bytes / unit * unit;
  return rounding == Rounding::kDown || down == bytes ? down : down + unit;
}

std::string FormatTypedBytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KB", "MB", "GB", "TB"};
  double scaled = static_cast<double>(bytes);
  size_t unit = 0;
  for (; scaled >= 1000 && unit + 1 < kUnits.size(); ++unit) scaled /= 1000;
  std::string digits = fmt::format("{:.{}f}", scaled, scaled >= 100 ? 1 : scaled >= 10 ? 2 : 3);
  while (digits.find('.') != std::string::npos && (digits.back() == '0' || digits.back() == '.')) {
    const bool point = digits.back() == '.';
    digits.pop_back();
    if (point) break;
  }
  return fmt::format("{} {}", digits, kUnits[unit]);
}

Answers AnswersByMemory(ChoiceSearch& searcher, const Found& now) {
  const uint64_t present = searcher.ClusterOf(now.candidate).cluster.gpu_capacity_bytes;
  const uint64_t most = TypedBytes(kMostMemory * present, Rounding::kDown);
  const std::vector<MemoryAnswer> all = searcher.AnswersByMemory(now, most + 1);
  Answers answers;
  const auto narrow = [&](const MemoryAnswer& range) {
    return range.found && range.from < range.to &&
           static_cast<double>(range.to) < kNarrow * static_cast<double>(range.from) &&
           !(range.from <= present && present < range.to);
  };
  for (size_t i = 0; i < all.size(); ++i) {
    MemoryAnswer joined = all[i];
    std::vector<Found> kinds;
    if (joined.found) kinds.push_back(*joined.found);
    while (narrow(all[i]) && i + 1 < all.size() && narrow(all[i + 1]) &&
           all[i].to == all[i + 1].from) {
      ++i;
      joined.to = all[i].to;
      if (std::none_of(kinds.begin(), kinds.end(), [&](const Found& kind) {
            return SameKind(kind.candidate, all[i].found->candidate);
          })) {
        kinds.push_back(*all[i].found);
      }
    }
    std::optional<AnswerRange> range = Typed(joined, present, most);
    if (!range) continue;
    range->found = std::move(kinds);
    answers.ranges.push_back(std::move(*range));
  }
  const bool points = !all.empty() && all.front().from == all.front().to;
  answers.gave_up = !points && (all.empty() || all.front().from > 0 || all.back().to <= most);
  // What is there at the near end: the very answer that a search of that memory gives.
  for (AnswerRange& range : answers.ranges) {
    if (range.found.empty() || points) continue;
    Question question;
    question.objective = searcher.inputs().objective;
    question.instruction_budget = kBudget;
    const double end = range.from > static_cast<double>(present) ? range.from : range.to;
    question.gpu_capacity_bytes = static_cast<uint64_t>(end);
    const Answer answer = searcher.Best(question);
    if (!answer.found) continue;
    const bool one = range.found.size() == 1 || range.point();
    std::erase_if(range.found, [&](const Found& kind) {
      return one || SameKind(kind.candidate, answer.found->candidate);
    });
    range.found.insert(range.found.begin(), *answer.found);
    range.gap = answer.gap;
  }
  return answers;
}

bool CanHave(const SearchInputs& inputs, int64_t sequences, int gpus) {
  SearchSpace space = inputs.space;
  space.gpus = {gpus};
  SetBatches(space, sequences, inputs.base.batch.seq_len);
  if (space.micro_batch_fixed) space.micro_batches = inputs.space.micro_batches;
  if (space.grad_accum_fixed) space.grad_accums = inputs.space.grad_accums;
  return AnyBatch(space);
}

Answers AnswersByBatch(ChoiceSearch& searcher, const Found& now) {
  Question question;
  question.objective = searcher.inputs().objective;
  question.instruction_budget = kBudget;
  Answers answers;
  const int64_t present =
      now.candidate.micro_batch * now.candidate.grad_accum * now.candidate.data_ranks();
  const int least = now.candidate.gpus / searcher.inputs().space.sequence_ranks.back();
  for (const bool larger : {false, true}) {
    int64_t batch = present;
    for (int i = 0; i < 6; ++i) {
      if (!larger && (batch % 2 != 0 || batch / 2 < std::max(1, least))) break;
      if (larger && batch > kMaxBatch / 2) break;
      batch = larger ? batch * 2 : batch / 2;
      if (!CanHave(searcher.inputs(), batch, now.candidate.gpus)) continue;
      question.global_batch = batch;
      const Answer answer = searcher.Best(question);
      if (answer.gave_up) {
        answers.gave_up = true;
        break;
      }
      AnswerRange at{static_cast<double>(batch), static_cast<double>(batch), {}, answer.gap};
      if (answer.found) at.found = {*answer.found};
      answers.ranges.push_back(std::move(at));
      if (!SameKinds(answer.found, now)) break;
    }
  }
  std::sort(answers.ranges.begin(), answers.ranges.end(),
            [](const AnswerRange& a, const AnswerRange& b) { return a.from < b.from; });
  return answers;
}

namespace {

// Where a short range between two of one sharding was not proven, the two and it are one range: the
// search did not find there what it found on both sides. REQUIRES: `ranges` of a sharding each.
void JoinOverUnproven(std::vector<AnswerRange>& ranges, double present, const SearchSpace& space) {
  const auto sharding = [&](const AnswerRange& range) {
    return ShardingOf(range.found.front().candidate, space);
  };
  for (size_t i = 1; i + 1 < ranges.size();) {
    AnswerRange &low = ranges[i - 1], &between = ranges[i], &high = ranges[i + 1];
    const bool joins = between.gap > 0 && between.to <= kShort * between.from &&
                       !(between.from <= present && present <= between.to) &&
                       sharding(low) == sharding(high);
    if (!joins) {
      ++i;
      continue;
    }
    if (high.from <= present) low.found = high.found;  // what is there nearest to the present
    low.to = high.to;
    low.gap = std::max({low.gap, between.gap, high.gap});
    const auto at = ranges.begin() + static_cast<std::ptrdiff_t>(i);
    ranges.erase(at, at + 2);
  }
}

}  // namespace

Answers AnswersByBandwidth(ChoiceSearch& searcher, const Found& now, const OtherLink& link,
                           double gap) {
  Answers answers;
  std::map<double, Answer> at;  // by rate
  const auto look = [&](double rate) {
    rate = link.Typed(rate);
    const auto [entry, added] = at.try_emplace(rate);
    if (added) entry->second = searcher.BestAtBandwidth(now, link, rate);
    return rate;
  };
  const double present = link.Typed(link.present());
  const Cluster& cluster = searcher.ClusterOf(now.candidate).cluster;
  const bool typed = link.network && !cluster.network.empty();
  if (typed && std::abs(present / link.present() - 1) < 1e-9) at[present] = {now, gap};
  const bool points = !searcher.needs_are_exact();
  if (points) {
    for (const double scale : {0.25, 4.0}) look(scale * present);
  } else {
    for (int octave = -kOctavesBelow; octave <= kOctavesAbove; ++octave) {
      look(std::exp2(octave) * present);
    }
  }
  const auto kind = [&](double rate) {
    const Answer& answer = at.at(rate);
    return answer.found ? ShardingOf(answer.found->candidate, searcher.inputs().space)
                        : Sharding{-1, 0};
  };
  if (!points) {
    // Between two that differ there may be a third.
    for (auto low = at.begin(); std::next(low) != at.end();) {
      const double from = low->first, to = std::next(low)->first;
      const double middle = link.Typed(std::sqrt(from * to));
      if (!(kind(from) == kind(to)) && to > kNear * from && from < middle && middle < to) {
        look(middle);
      } else {
        ++low;
      }
    }
  }
  for (const auto& [rate, answer] : at) {
    if (answer.gave_up || !answer.found) {
      answers.gave_up = true;
      continue;
    }
    AnswerRange* last = answers.ranges.empty() ? nullptr : &answers.ranges.back();
    if (last != nullptr && !points &&
        ShardingOf(last->found.front().candidate, searcher.inputs().space) == kind(rate)) {
      last->to = rate;
      last->gap = std::max(last->gap, answer.gap);
      if (rate <= present) last->found = {*answer.found};
      continue;
    }
    answers.ranges.push_back({rate, rate, {*answer.found}, answer.gap});
  }
  if (!points) JoinOverUnproven(answers.ranges, present, searcher.inputs().space);
  return answers;
}

std::string_view ScarcestLink::Name() const {
  return network ? "between nodes (each node, each direction)"
                 : "between the GPUs (each one, each direction)";
}

ScarcestLink ScarcestLinkOf(const Cluster& cluster, const HardwareProfile& hardware) {
  const bool network = cluster.gpus > cluster.gpus_per_node;
  return {network,
          network ? hardware.network->bandwidth_per_node.value : hardware.node.gpu_link.value};
}

std::string LinksText(const Cluster& cluster, const HardwareProfile& hardware) {
  if (cluster.gpus == 1) return "";
  std::string text;
  if (cluster.gpus_per_node > 1) {
    text = fmt::format("{} each way between GPUs",
                       FormatBandwidth(hardware.node.gpu_link.value, false));
  }
  if (cluster.nodes() > 1) {
    text += fmt::format("{}{} each way between nodes", text.empty() ? "" : ", ",
                        FormatBandwidth(hardware.network->bandwidth_per_node.value, true));
  }
  return text;
}

std::string FormatBandwidth(double bytes_per_second, bool bits) {
  const double giga = bytes_per_second / 1e9 * (bits ? 8 : 1);
  const char* unit = bits ? "Gb/s" : "GB/s";
  return giga >= 100 ? fmt::format("{:.0f} {}", giga, unit) : fmt::format("{:.3g} {}", giga, unit);
}

}  // namespace zeroplan
