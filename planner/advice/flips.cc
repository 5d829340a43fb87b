#include "planner/advice/flips.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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

// The answer within a part of a plan's budget or, where that proves none, within all of it.
Answer BestWithin(ChoiceSearch& searcher, Question question) {
  question.instruction_budget = kBudget;
  const Answer answer = searcher.Best(question);
  if (answer.found && answer.gap == 0) return answer;
  question.instruction_budget = kInstructionBudget;
  return searcher.Best(question);
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
    const double end = range.from > static_cast<double>(present) ? range.from : range.to;
    question.gpu_capacity_bytes = static_cast<uint64_t>(end);
    const Answer answer = BestWithin(searcher, question);
    if (!answer.found) continue;
    const bool one = range.found.size() == 1 || range.point();
    // The sweep proved the kind.
    if (answer.gap > kMostGap || (one && !SameKinds(answer.found, range.found.front()))) {
      range.kind_alone = true;
      const double limit = (1 + answer.gap) * Merit(*answer.found);
      range.gap = std::max(answer.gap, limit / Merit(range.found.front()) - 1);
      continue;
    }
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
      const Answer answer = BestWithin(searcher, question);
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
    const bool joins = between.gap > 0 && !between.open_below && !between.open_above &&
                       between.to <= kShort * between.from &&
                       !(between.from <= present && present <= between.to) &&
                       sharding(low) == sharding(high);
    if (!joins) {
      ++i;
      continue;
    }
    if (high.from <= present) low.found = high.found;  // what is there nearest to the present
    low.to = high.to;
    low.gap = std::max({low.gap, between.gap, high.gap});
    low.open_above = high.open_above;
    const auto at = ranges.begin() + static_cast<std::ptrdiff_t>(i);
    ranges.erase(at, at + 2);
  }
}

// Searches at other bandwidths, each rate once or, where that left something open, twice.
class BandwidthAnswers {
 public:
  BandwidthAnswers(ChoiceSearch& searcher, const Found& now, const OtherLink& link, double gap)
      : searcher_(searcher),
        now_(now),
        link_(link),
        present_(link.Typed(link.present())),
        points_(!searcher.needs_are_exact()) {
    const Cluster& cluster = searcher.ClusterOf(now.candidate).cluster;
    const bool typed = link.network && !cluster.network.empty();
    if (typed && std::abs(present_ / link.present() - 1) < 1e-9) {
      at_[present_] = {Answer{now, gap}, /*as_plan=*/true};
    }
  }

  Answers Find() {
    if (points_) {
      for (const double scale : {0.25, 4.0}) Look(scale * present_);
      return Ranges();
    }
    for (int octave = -kOctavesBelow; octave <= kOctavesAbove; ++octave) {
      Look(std::exp2(octave) * present_);
    }
    Narrow(Budget::kPart);
    bool changed = true;
    while (changed) {
      changed = false;
      while (LookAgain()) changed = true;
      if (changed) Narrow(Budget::kPlan);
    }
    Answers answers = Ranges();
    JoinOverUnproven(answers.ranges, present_, searcher_.inputs().space);
    return answers;
  }

 private:
  struct Looked {
    Answer answer;
    bool as_plan = false;  // whether a plan for that rate finds this
  };
  using At = std::map<double, Looked>;  // by rate

  void Look(double rate, Budget budget = Budget::kPart) {
    rate = link_.Typed(rate);
    const auto [entry, added] = at_.try_emplace(rate);
    if (added) entry->second = Search(rate, budget);
  }
  Looked Search(double rate, Budget budget) {
    return {searcher_.BestAtBandwidth(now_, link_, rate, budget), budget == Budget::kPlan};
  }

  // Whether a plan for that rate finds nothing else.
  static bool Settled(const Looked& looked) {
    return looked.as_plan || (looked.answer.found && looked.answer.gap == 0);
  }
  bool IsOctave(double rate) const {
    const double octave = std::round(std::log2(rate / present_));
    return rate == link_.Typed(std::exp2(octave) * present_);
  }

  Sharding KindAt(const Looked& looked) const {
    return looked.answer.found
               ? ShardingOf(looked.answer.found->candidate, searcher_.inputs().space)
               : Sharding{-1, 0};
  }
  bool Differ(At::const_iterator a, At::const_iterator b) const {
    return !(KindAt(a->second) == KindAt(b->second));
  }

  // Between two that differ there may be a third.
  void Narrow(Budget budget) {
    for (auto low = at_.begin(); std::next(low) != at_.end();) {
      const double from = low->first, to = std::next(low)->first;
      const double middle = link_.Typed(std::sqrt(from * to));
      if (Differ(low, std::next(low)) && to > kNear * from && from < middle && middle < to) {
        Look(middle, budget);
      } else {
        ++low;
      }
    }
  }

  // Searches as a plan does where the answer is not proven: at the ends of ranges, and where it is
  // not known. True: that made another kind of one.
  bool LookAgain() {
    for (auto entry = at_.begin(); entry != at_.end(); ++entry) {
      Looked& looked = entry->second;
      if (Settled(looked)) continue;
      const bool last = std::next(entry) == at_.end();
      const bool end = entry == at_.begin() || last || Differ(entry, std::prev(entry)) ||
                       Differ(entry, std::next(entry));
      if (!end && looked.answer.gap <= kMostGap && looked.answer.found) continue;
      const Sharding before = KindAt(looked);
      looked = Search(entry->first, Budget::kPlan);
      if (KindAt(looked) == before) continue;
      Drop(entry);
      return true;
    }
    return false;
  }

  // Forgets what a part of the budget found next to `entry`, which it got wrong.
  void Drop(At::iterator entry) {
    const auto wrong = [this](At::const_iterator other) {
      return !Settled(other->second) && !IsOctave(other->first);
    };
    while (entry != at_.begin() && wrong(std::prev(entry))) at_.erase(std::prev(entry));
    while (std::next(entry) != at_.end() && wrong(std::next(entry))) at_.erase(std::next(entry));
  }

  Answers Ranges() const {
    Answers answers;
    bool open = false;
    for (const auto& [rate, looked] : at_) {
      const Answer& answer = looked.answer;
      const bool known = answer.found.has_value();
      if (!known || answer.gap > kMostGap) {
        answers.gave_up |= !known;
        if (known) {
          const double least = answers.least_gap;
          answers.least_gap = least > 0 ? std::min(least, answer.gap) : answer.gap;
        }
        open = true;
        if (!answers.ranges.empty()) answers.ranges.back().open_above = true;
        continue;
      }
      AnswerRange* last = answers.ranges.empty() ? nullptr : &answers.ranges.back();
      if (last != nullptr && !points_ && !open &&
          ShardingOf(last->found.front().candidate, searcher_.inputs().space) == KindAt(looked)) {
        last->to = rate;
        last->gap = std::max(last->gap, answer.gap);
        if (rate <= present_) last->found = {*answer.found};
        continue;
      }
      AnswerRange range{rate, rate, {*answer.found}, answer.gap};
      range.open_below = open;
      answers.ranges.push_back(std::move(range));
      open = false;
    }
    return answers;
  }

  ChoiceSearch& searcher_;
  const Found& now_;
  const OtherLink& link_;
  const double present_;
  const bool points_;
  At at_;
};

}  // namespace

Answers AnswersByBandwidth(ChoiceSearch& searcher, const Found& now, const OtherLink& link,
                           double gap) {
  return BandwidthAnswers(searcher, now, link, gap).Find();
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
