#include "planner/search/memory_sweep.h"

#include <algorithm>
#include <map>
#include <queue>

namespace zeroplan {
namespace {

// What a direction may cost, in instructions lowered.
constexpr double kSweepBudget = 3e6;

// Stage, groups, offload and recompute (SameKind), the simplest first.
using KindKey = std::array<int, 4>;
KindKey KindKeyOf(const Candidate& candidate) {
  const std::array<int, 5> all = Complexity(candidate);
  return {all[0], all[1], all[2], all[3]};
}

class MemorySweep {
 public:
  MemorySweep(Judge& judge, uint64_t most) : judge_(judge) {
    Question question;
    question.gpu_capacity_bytes = most;
    items_ = judge.Open(question, /*cut=*/true);
    open_.reserve(items_.size());
    for (uint32_t i = 0; i < items_.size(); ++i) {
      open_.push_back({judge.CapacityNeeded(items_[i], items_[i].gpu_bytes), i});
    }
    std::sort(open_.begin(), open_.end());
    first_of_group_.assign(judge.group_count(), UINT32_MAX);
    for (uint32_t i = static_cast<uint32_t>(items_.size()); i-- > 0;) {
      first_of_group_[items_[i].group] = i;
    }
  }

  // The least memory that anything fits in; none: the search for it was given up.
  std::optional<uint64_t> Least(uint64_t until) {
    uint64_t least = UINT64_MAX;
    for (const auto& [needs, i] : open_) {
      if (needs >= least) return least;
      if (judge_.stats.instructions > until) return std::nullopt;
      if (const std::optional<Judged> judged = Look(i)) least = std::min(least, judged->needs);
    }
    return least;
  }

  // Ranges of [low, high), joined to none that went before. False: `until` instructions were
  // lowered before its end; what there is ends where they were.
  bool Run(uint64_t low, uint64_t high, uint64_t until, std::vector<MemoryAnswer>& ranges) {
    kinds_.clear();
    judged_ = {};
    waiting_ = {};
    most_found_ = 0;
    size_t next = 0;
    const auto first = ranges.size();
    for (uint64_t at = low; at < high;) {
      bool changed = at == low;
      for (; next < open_.size() && open_[next].first <= at; ++next) {
        changed |= Admit(open_[next].second, at);
      }
      while (!waiting_.empty() && waiting_.top().first <= at) {
        const uint32_t i = waiting_.top().second;
        waiting_.pop();
        changed |= Admit(i, at);
      }
      for (; !judged_.empty() && judged_.top().needs <= at; judged_.pop()) {
        changed |= Take(judged_.top());
      }
      if (changed) {
        const Kind* kind = Decide(at, until);
        if (spent_) {
          if (ranges.size() > first) ranges.back().to = at;
          return false;
        }
        const bool same =
            ranges.size() > first && ranges.back().found.has_value() == (kind != nullptr) &&
            (kind == nullptr || KindKeyOf(ranges.back().found->candidate) == kind->key);
        if (!same) {
          if (ranges.size() > first) ranges.back().to = at;
          MemoryAnswer range;
          range.from = at;
          if (kind != nullptr) range.found = kind->best;
          ranges.push_back(range);
        }
      }
      at = high;
      if (next < open_.size()) at = std::min(at, open_[next].first);
      if (!judged_.empty()) at = std::min(at, judged_.top().needs);
      if (!waiting_.empty()) at = std::min(at, waiting_.top().first);
    }
    if (ranges.size() > first) ranges.back().to = high;
    return true;
  }

 private:
  struct Kind {
    KindKey key{};
    double merit = 0;  // of `best`; 0: none fits
    Found best;
    std::vector<uint32_t> open;  // a heap of what was not judged, the best bound at its front
  };
  struct Judged {
    uint64_t needs = 0;
    Found found;
    bool operator<(const Judged& other) const { return needs > other.needs; }
  };

  double BoundOf(uint32_t i) const { return items_[i].bound.primary; }
  double MostOf(const Kind& kind) const {
    return kind.open.empty() ? kind.merit : std::max(kind.merit, BoundOf(kind.open.front()));
  }
  Kind& KindOf(const Candidate& candidate) {
    const KindKey key = KindKeyOf(candidate);
    Kind& kind = kinds_[key];
    kind.key = key;
    return kind;
  }
  auto Worse() const {
    return [this](uint32_t a, uint32_t b) { return items_[a] < items_[b]; };
  }

  // From here on the item fits by its bound. Whether that can change the answer.
  bool Admit(uint32_t i, uint64_t at) {
    if (BoundOf(i) < TieFloor(most_found_)) return false;
    Kind& kind = KindOf(judge_.CandidateOfGroup(items_[i].group));
    if (BoundOf(i) <= kind.merit) return false;
    if (judge_.Knows(items_[i])) return JudgeItem(i, at);
    kind.open.push_back(i);
    std::push_heap(kind.open.begin(), kind.open.end(), Worse());
    return true;
  }

  bool Take(const Judged& judged) {
    Kind& kind = KindOf(judged.found.candidate);
    if (judged.found.merit <= kind.merit) return false;
    kind.merit = judged.found.merit;
    kind.best = judged.found;
    most_found_ = std::max(most_found_, kind.merit);
    return true;
  }

  // Whether it fits at once; else it waits for its memory.
  bool JudgeItem(uint32_t i, uint64_t at) {
    const std::optional<Judged> judged = Look(i);
    if (!judged) return false;
    if (judged->needs <= at) return Take(*judged);
    judged_.push(*judged);
    return false;
  }

  // None: host or disk are short.
  std::optional<Judged> Look(uint32_t i) {
    Question any;
    any.gpu_capacity_bytes = UINT64_MAX / 4;
    const std::optional<Found> found = judge_.Try(any, items_[i]);
    if (!found) return std::nullopt;
    return Judged{judge_.CapacityNeeded(items_[i], found->gpu_bytes), *found};
  }

  // Judges the most promising of a kind; where it hardly fits, first the smallest micro-batch of
  // its group that hardly does, which says what the larger ones take at least.
  void JudgeFirst(Kind& kind, uint64_t at) {
    const uint32_t i = kind.open.front();
    const uint64_t needs = judge_.CapacityNeeded(items_[i], judge_.LeastGpuBytes(items_[i]));
    Question here;
    here.gpu_capacity_bytes = at;
    if (needs <= at && judge_.UnlikelyToFit(here, items_[i])) {
      const int64_t accum = std::min<int64_t>(items_[i].batch.grad_accum, 3);
      for (uint32_t j = first_of_group_[items_[i].group]; j < i; ++j) {
        if (std::min<int64_t>(items_[j].batch.grad_accum, 3) != accum || judge_.Knows(items_[j]) ||
            !judge_.UnlikelyToFit(here, items_[j])) {
          continue;
        }
        JudgeItem(j, at);
        return;
      }
    }
    std::pop_heap(kind.open.begin(), kind.open.end(), Worse());
    kind.open.pop_back();
    if (needs > at) {
      waiting_.push({needs, i});
    } else {
      JudgeItem(i, at);
    }
  }

  // The kind of the answer, as a search of this memory has it: the simplest that ties with the
  // fastest. Judges what that depends on. Null: nothing fits, or (spent_) the budget is over.
  const Kind* Decide(uint64_t at, uint64_t until) {
    for (;;) {
      if (judge_.stats.instructions > until) {
        spent_ = true;
        return nullptr;
      }
      Kind* fastest = nullptr;  // by its bound
      for (auto& [key, kind] : kinds_) {
        while (!kind.open.empty() && BoundOf(kind.open.front()) <= kind.merit) {
          std::pop_heap(kind.open.begin(), kind.open.end(), Worse());
          kind.open.pop_back();
        }
        if (fastest == nullptr || MostOf(kind) > MostOf(*fastest)) fastest = &kind;
      }
      if (fastest == nullptr || MostOf(*fastest) <= 0) return nullptr;
      const double most = MostOf(*fastest);
      if (most_found_ <= 0) {
        JudgeFirst(*fastest, at);
        continue;
      }
      Kind* unsettled = nullptr;
      for (auto& [key, kind] : kinds_) {
        if (kind.merit >= TieFloor(most)) return &kind;
        if (MostOf(kind) < TieFloor(most_found_)) continue;
        unsettled = kind.merit >= TieFloor(most_found_) ? fastest : &kind;
        break;
      }
      JudgeFirst(*unsettled, at);
    }
  }

  Judge& judge_;
  std::vector<Item> items_;
  std::vector<std::pair<uint64_t, uint32_t>> open_;  // by memory
  std::map<KindKey, Kind> kinds_;
  std::priority_queue<Judged> judged_;  // what waits for its memory
  // What smaller micro-batches say does not fit yet, by the memory that it takes at least.
  using Waiting = std::pair<uint64_t, uint32_t>;
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> waiting_;
  std::vector<uint32_t> first_of_group_;
  double most_found_ = 0;
  bool spent_ = false;
};

void Join(std::vector<MemoryAnswer>& ranges) {
  std::vector<MemoryAnswer> joined;
  for (const MemoryAnswer& range : ranges) {
    if (!joined.empty() && joined.back().to == range.from &&
        joined.back().found.has_value() == range.found.has_value() &&
        (!range.found ||
         KindKeyOf(joined.back().found->candidate) == KindKeyOf(range.found->candidate))) {
      joined.back().to = range.to;
    } else {
      joined.push_back(range);
    }
  }
  ranges = std::move(joined);
}

}  // namespace

std::vector<MemoryAnswer> SweepMemory(Judge& judge, const Found& now, uint64_t most) {
  const uint64_t present = judge.ClusterOf(now.candidate).cluster.gpu_capacity_bytes;
  const auto budget = static_cast<uint64_t>(judge.inputs().effort * kSweepBudget);
  MemorySweep sweep(judge, most);
  std::vector<MemoryAnswer> ranges;
  sweep.Run(present, most, judge.stats.instructions + budget, ranges);
  if (ranges.empty()) return ranges;  // what is the best now was not settled
  // Downwards part by part: what is needed of a part is a small share of what it takes in all.
  const uint64_t until = judge.stats.instructions + budget;
  const std::optional<uint64_t> least = sweep.Least(until);
  constexpr double kPart = 1.25;
  uint64_t high = present;
  while (high > least.value_or(1)) {
    const uint64_t low =
        std::max(least.value_or(1), static_cast<uint64_t>(static_cast<double>(high) / kPart));
    std::vector<MemoryAnswer> part;
    if (!sweep.Run(low, high, until, part)) break;
    ranges.insert(ranges.end(), part.begin(), part.end());
    high = low;
  }
  if (least && high == *least) ranges.push_back({0, *least, std::nullopt, 0});
  std::sort(ranges.begin(), ranges.end());
  Join(ranges);
  return ranges;
}

std::vector<MemoryAnswer> AnswersAtMemories(ChoiceSearch& search, const Found& now, uint64_t most) {
  const uint64_t present = search.ClusterOf(now.candidate).cluster.gpu_capacity_bytes;
  std::vector<MemoryAnswer> answers;
  for (const double factor : {0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 3.0, 4.0}) {
    // As one types it: three digits.
    uint64_t bytes = static_cast<uint64_t>(factor * static_cast<double>(present)), unit = 1;
    while (bytes / unit >= 1000) unit *= 10;
    bytes = bytes / unit * unit;
    if (bytes > most) break;
    Question question;
    question.objective = search.inputs().objective;
    question.gpu_capacity_bytes = bytes;
    question.instruction_budget = kInstructionBudget / 8;
    const Answer answer = search.Best(question);
    if (answer.gave_up || (answer.gap > 0 && !search.inputs().space.mixes.empty())) continue;
    answers.push_back({bytes, bytes, answer.found, answer.gap});
  }
  return answers;
}

}  // namespace zeroplan
