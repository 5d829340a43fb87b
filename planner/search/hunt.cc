#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "planner/search/judge.h"

namespace zeroplan {
namespace {
constexpr double kSumRounding = 1e-9;

// What is explored together: choices that differ in shares, segments, numbers of layers, buckets
// and batch.
using HuntKind = std::array<int, 13>;
HuntKind HuntKindOf(const Candidate& c) {
  return {c.gpus,
          c.sequence_ranks,
          c.stage,
          c.grouping.ranks,
          c.grouping.across_stage,
          static_cast<int>(c.optimizer.device),
          static_cast<int>(c.param),
          InexactnessOf(c),
          c.pin_memory,
          static_cast<int>(c.recompute.kind),
          static_cast<int>(c.recompute.above),
          c.recompute.layers > 0,
          (c.recompute.offload.device != OffloadDevice::kNone) + (c.recompute.offload.layers > 0)};
}

// The same but for recompute.
constexpr size_t kKindWithoutRecompute = 9;

// In how many dimensions two groups differ.
int Distance(const Candidate& a, const Candidate& b) {
  return (a.gpus != b.gpus) + (a.sequence_ranks != b.sequence_ranks) + (a.stage != b.stage) +
         !(a.grouping == b.grouping) + !(a.optimizer == b.optimizer) + (a.param != b.param) +
         (MixOf(a.recompute) != MixOf(b.recompute)) + !(a.buckets == b.buckets) +
         !(a.gathering == b.gathering) + (a.states != b.states) + (a.products != b.products) +
         (a.sub_group_elements != b.sub_group_elements) + (a.pin_memory != b.pin_memory);
}

// Whether `a` takes as much of a GPU as `b` at least: the same, but for less of states and
// parameters on the host, or more that is gathered ahead. Layers that stay gathered may take less
// than those that are gathered anew: they are not there twice. And with products of eight bits
// parameters on the GPU may be gathered in these, which those on the host are not.
bool NeedsNoLess(const Candidate& a, const Candidate& b) {
  Candidate same = a;
  if (a.optimizer.device == OffloadDevice::kNone && a.gpus > 1) same.optimizer = b.optimizer;
  if (a.param == OffloadDevice::kNone && a.gpus > 1 && !a.products.fp8) same.param = b.param;
  same.optimizer.ratio = b.optimizer.ratio;
  same.buckets.prefetch = b.buckets.prefetch;
  // One unit ahead is the least but none.
  const auto ahead = [](uint64_t prefetch) { return prefetch == kAuto ? 1 : prefetch; };
  const bool on_host = a.optimizer.device != OffloadDevice::kNone;
  return same == b && (!on_host || a.optimizer.ratio <= b.optimizer.ratio) &&
         ahead(a.buckets.prefetch) >= ahead(b.buckets.prefetch);
}

// Whether a choice of `bound` could be better than one of `score`. Tokens a second that are equal
// but for the order of a sum's terms are equal.
bool CouldBeat(Objective objective, const Score& bound, const Score& score) {
  switch (objective) {
    case Objective::kThroughput:
      return bound.primary > score.primary * (1 + kSumRounding);
    case Objective::kHeadroom:
      return score < bound;
    case Objective::kFewestGpus:
      return bound.primary > score.primary ||
             (bound.primary == score.primary &&
              bound.secondary > score.secondary * (1 + kSumRounding));
  }
  return false;
}

// The search for one answer.
class Hunt {
 public:
  Hunt(Judge& judge, const Question& question)
      : judge_(judge),
        question_(question),
        budget_(static_cast<uint64_t>(judge.inputs().effort *
                                      static_cast<double>(question.instruction_budget))),
        started_(judge.stats) {}

  Answer Run() {
    if (const std::optional<Found> known = judge_.BestKnown(question_)) Take(*known);
    items_ = judge_.Open(question_, true);
    Index();
    if (question_.any) {
      if (answer_.found) return answer_;
      AddMixes();
      return FirstThatFits();
    }
    TryFirst(0);
    const bool explores = question_.objective == Objective::kThroughput;
    if (explores) {
      Classify();
      const uint64_t budget = judge_.inputs().space.mixes.empty() ? budget_ : budget_ / 2;
      for (const uint64_t quarter : {1, 2}) {
        Explore(quarter * budget / 4);
        Improve(quarter * budget / 4 + budget / 4);
      }
    }
    const size_t mixes = items_.size();
    AddMixes();
    TryFirst(mixes);
    if (explores && classified_ < items_.size()) {
      Classify();
      Explore(budget_ * 5 / 8);
      Improve(budget_ * 7 / 8);
    }
    if (!answer_.found) {
      if (NothingFits()) return answer_;
      if (explores && answer_.found) {
        started_ = judge_.stats;  // what found a begin is no part of the budget
        Improve(budget_ / 2);
        Explore(budget_ * 3 / 4);
        Improve(budget_ * 7 / 8);
      }
    }
    Prove();
    if (answer_.found && question_.objective != Objective::kHeadroom) PreferSimple();
    if (answer_.found) answer_.gave_up = false;
    return answer_;
  }

  Answer RunBruteForce() {
    items_ = judge_.Open(question_, false);
    const std::vector<Item> mixes = judge_.OpenMixes(question_, false, {}, /*each=*/true);
    items_.insert(items_.end(), mixes.begin(), mixes.end());
    for (const Item& item : items_) {
      const std::optional<Found> found = judge_.Try(question_, item);
      if (found) Take(*found);
    }
    return answer_;
  }

  uint64_t left() const { return left_; }

 private:
  // Where the items of a group, or of its list of mixes, lie, by rising micro-batch.
  struct Range {
    uint32_t begin = 0, end = 0;
  };
  // Orders heaps of items.
  struct ByBound {
    const std::vector<Item>& items;
    bool operator()(uint32_t a, uint32_t b) const { return items[a] < items[b]; }
  };
  struct Class {
    std::vector<uint32_t> items;  // a heap, the best bound at its front
    double best_share = 1;        // of the bound that a program reached
    int since_better = 0;         // programs judged since that was raised
  };

  // REQUIRES: of what is not indexed yet, items of a group and list lie side by side.
  void Index() {
    for (auto i = static_cast<uint32_t>(tried_.size()); i < items_.size(); ++i) {
      const bool same = !ranges_.empty() && i > tried_.size() &&
                        items_[i].group == items_[i - 1].group &&
                        items_[i].mix == items_[i - 1].mix;
      if (!same) ranges_.push_back({i, i});
      ranges_.back().end = i + 1;
    }
    tried_.resize(items_.size(), 0);
  }

  // What is to be judged first, of the items from there on.
  void TryFirst(size_t from) {
    for (const Candidate& first : question_.first) {
      for (size_t i = from; i < items_.size(); ++i) {
        const Item& item = items_[i];
        if (item.batch.micro_batch == first.micro_batch &&
            item.batch.grad_accum == first.grad_accum &&
            Distance(judge_.CandidateOf(item), first) == 0) {
          Try(static_cast<uint32_t>(i));
        }
      }
    }
  }

  // Mixes are better than what is known, or tie with it, only in part.
  void AddMixes() {
    Score floor;
    if (answer_.found && question_.objective != Objective::kHeadroom) {
      floor = {TieFloor(score_.primary), -std::numeric_limits<double>::infinity()};
      if (question_.objective == Objective::kFewestGpus) {
        floor = {score_.primary, TieFloor(score_.secondary)};
      }
    }
    const std::vector<Item> mixes = judge_.OpenMixes(question_, true, floor, /*each=*/false);
    items_.insert(items_.end(), mixes.begin(), mixes.end());
    Index();
  }

  // Sorts what is new into classes. Mixes are taken to reach the share of their bounds that the
  // same with one recompute for all layers reached.
  void Classify() {
    std::map<std::array<int, kKindWithoutRecompute>, double> shares;
    const auto key = [](const HuntKind& kind) {
      std::array<int, kKindWithoutRecompute> of{};
      std::copy_n(kind.begin(), of.size(), of.begin());
      return of;
    };
    for (const auto& [kind, all] : classes_) {
      if (all.best_share >= 1) continue;
      double& share = shares[key(kind)];
      share = std::max(share, all.best_share);
    }
    std::map<HuntKind, Class> fresh;
    for (; classified_ < items_.size(); ++classified_) {
      fresh[HuntKindOf(judge_.CandidateOf(items_[classified_]))].items.push_back(classified_);
    }
    for (auto& [kind, all] : fresh) {
      std::make_heap(all.items.begin(), all.items.end(), ByBound{items_});
      if (const auto share = shares.find(key(kind)); share != shares.end()) {
        all.best_share = share->second;
      }
    }
    classes_.merge(fresh);
  }

  bool Take(const Found& found) {
    const Score score = ScoreOf(question_.objective, found);
    if (answer_.found && !(score_ < score)) return false;
    score_ = score;
    answer_.found = found;
    return true;
  }

  // Whether nothing fits. If something does, it is taken for a begin.
  bool NothingFits() {
    if (items_.empty()) return true;
    const JudgeStats counted = judge_.stats;
    Question first = question_;
    first.any = true;
    first.instruction_budget *= 4;  // while nothing fits there is nothing to hand out
    const Answer answer = Hunt(judge_, first).Run();
    judge_.stats.candidates = counted.candidates;
    judge_.stats.cut_by_memory = counted.cut_by_memory;
    judge_.stats.cut_by_score = counted.cut_by_score;
    judge_.stats.judged = counted.judged;
    if (answer.found) Take(*answer.found);
    return !answer.found && !answer.gave_up;
  }

  // The first that fits, those first whose bound and what programs like them took beyond theirs are
  // least, and last what is unlikely to fit. What needs no less of the GPU than one that is too
  // large for it is not lowered.
  Answer FirstThatFits() {
    // Alike: all but the share of the states on the host, and the batch.
    struct Queue {
      std::vector<uint32_t> items;  // the smallest last
      uint64_t beyond = 0;          // the least that a program took beyond its bound
    };
    std::map<Candidate, Queue> queues;
    for (uint32_t i = 0; i < items_.size(); ++i) {
      Candidate key = judge_.CandidateOf(items_[i]);
      key.optimizer.ratio = 1;
      queues[key].items.push_back(i);
    }
    for (auto& [key, queue] : queues) {
      std::sort(queue.items.begin(), queue.items.end(), [&](uint32_t a, uint32_t b) {
        return items_[a].gpu_bytes != items_[b].gpu_bytes
                   ? items_[a].gpu_bytes > items_[b].gpu_bytes
                   : a > b;
      });
    }
    while (true) {
      std::pair<const Candidate, Queue>* next = nullptr;
      bool next_is_unlikely = false;
      const auto before = [&](const auto& a, const auto& b) {
        const auto bytes = [&](const Queue& queue) {
          return items_[queue.items.back()].gpu_bytes + queue.beyond;
        };
        const uint64_t of_a = bytes(a.second), of_b = bytes(b.second);
        return of_a != of_b ? of_a < of_b : NeedsNoLess(b.first, a.first);
      };
      for (auto& queue : queues) {
        std::vector<uint32_t>& items = queue.second.items;
        while (!items.empty() && tried_[items.back()]) items.pop_back();
        if (items.empty()) continue;
        const bool unlikely = UnlikelyToFit(items.back());
        if (next == nullptr || unlikely < next_is_unlikely ||
            (unlikely == next_is_unlikely && before(queue, *next))) {
          next = &queue;
          next_is_unlikely = unlikely;
        }
      }
      if (next == nullptr) return answer_;
      if (Over(budget_)) {
        answer_.gave_up = true;
        return answer_;
      }
      const Item& item = items_[next->second.items.back()];
      if (Try(next->second.items.back())) return answer_;
      const uint64_t beyond = judge_.LeastGpuBytes(item) - item.gpu_bytes;
      uint64_t& least = next->second.beyond;
      least = least == 0 ? beyond : std::min(least, beyond);
      const Candidate small = judge_.CandidateOf(item);
      for (auto& [key, queue] : queues) {
        Candidate same = key;
        same.gathering.persistence_threshold = next->first.gathering.persistence_threshold;
        if (NeedsNoLess(same, next->first)) queue.beyond = std::max(queue.beyond, beyond);
      }
      if (!judge_.TooLargeForGpu(question_, item)) continue;
      for (uint32_t i = 0; i < items_.size(); ++i) {
        const Item& other = items_[i];
        if (other.batch.micro_batch == item.batch.micro_batch &&
            other.batch.grad_accum == item.batch.grad_accum &&
            NeedsNoLess(judge_.CandidateOf(other), small)) {
          tried_[i] = 1;
        }
      }
    }
  }

  uint64_t Spent() const { return judge_.stats.instructions - started_.instructions; }
  int Programs() const { return static_cast<int>(judge_.stats.lowered - started_.lowered); }
  bool Over(uint64_t budget) const {
    return Spent() >= budget || Programs() >= question_.most_programs;
  }

  // What lies behind the member that was found computes more, so that it is faster by no more than
  // what is not told apart, if at all: where that could make it the best, and its bound too, it is
  // an item of its own.
  // `slower`: as many of its members were counted as cut.
  void KeepBehind(const Item& item, const Found& found, uint64_t slower) {
    if (Merit(found) < TieFloor(Merit(*answer_.found))) return;
    const std::optional<Item> behind = judge_.Behind(question_, item, found);
    if (!behind || !CouldBeat(question_.objective, behind->bound, score_)) return;
    items_.push_back(*behind);
    tried_.push_back(0);
    behind_.push_back(static_cast<uint32_t>(items_.size() - 1));
    judge_.stats.cut_by_score -= slower;
    judge_.stats.judged -= MembersOf(behind_.back()) - slower;
  }

  // Judges an item unless that was done; true if it is the best so far.
  bool Try(uint32_t i, std::optional<Found>* result = nullptr) {
    if (tried_[i]) return false;
    tried_[i] = 1;
    const Item item = items_[i];
    if (judge_.TooLarge(question_, item)) {
      judge_.stats.cut_by_memory += MembersOf(i);
      return false;
    }
    const uint64_t cut = judge_.stats.cut_by_score;
    const std::optional<Found> found = judge_.Try(question_, item);
    if (judge_.inputs().progress) judge_.inputs().progress(judge_.stats.lowered);
    if (result != nullptr) *result = found;
    const bool better = found && Take(*found);
    if (found) KeepBehind(item, *found, judge_.stats.cut_by_score - cut);
    return better;
  }

  bool UnlikelyToFit(uint32_t i) const { return judge_.UnlikelyToFit(question_, items_[i]); }

  void Pop(Class& all) const {
    std::pop_heap(all.items.begin(), all.items.end(), ByBound{items_});
    all.items.pop_back();
  }

  // The most promising of every kind, by bounds times the share of its bound that the kind reached.
  void Explore(uint64_t budget) {
    constexpr int kPatience = 8;
    while (!Over(budget)) {
      Class* next = nullptr;
      double promised = answer_.found ? score_.primary : 0;
      for (auto& [kind, all] : classes_) {
        if (all.since_better >= kPatience) continue;
        while (!all.items.empty() &&
               (tried_[all.items.front()] || UnlikelyToFit(all.items.front()))) {
          Pop(all);
        }
        if (all.items.empty()) continue;
        const double promise = items_[all.items.front()].bound.primary * all.best_share;
        if (promise <= promised) continue;
        promised = promise;
        next = &all;
      }
      if (next == nullptr) return;
      const uint32_t i = next->items.front();
      Pop(*next);
      std::optional<Found> found;
      Try(i, &found);
      const double share =
          found ? ScoreOf(question_.objective, *found).primary / items_[i].bound.primary : 0;
      const bool first = next->best_share == 1;
      if (found && (first || share > next->best_share)) {
        next->best_share = share;
        next->since_better = 0;
      } else {
        ++next->since_better;
      }
    }
  }

  // The best's neighbours, which differ in one dimension: first with its batch, then with others.
  void Improve(uint64_t budget) {
    constexpr int kRounds = 8;
    for (int round = 0; round < kRounds && answer_.found; ++round) {
      const Candidate now = answer_.found->candidate;
      std::vector<uint32_t> same_batch, near_batch;
      for (const Range& range : ranges_) {
        if (Distance(judge_.CandidateOf(items_[range.begin]), now) > 1) continue;
        AddNear(range, now, same_batch, near_batch);
      }
      if (!TryAll(same_batch, budget) && !TryAll(near_batch, budget)) return;
    }
  }

  // Judges the most promising of `near`; true if one is the best so far.
  bool TryAll(std::vector<uint32_t>& near, uint64_t budget) {
    constexpr size_t kNeighbours = 24;
    std::sort(near.begin(), near.end(),
              [&](uint32_t a, uint32_t b) { return items_[b] < items_[a]; });
    if (near.size() > kNeighbours) near.resize(kNeighbours);
    bool better = false;
    for (const uint32_t i : near) {
      if (Over(budget)) break;
      if (CouldBeat(question_.objective, items_[i].bound, score_)) better |= Try(i);
    }
    return better;
  }

  void AddNear(const Range& range, const Candidate& now, std::vector<uint32_t>& same_batch,
               std::vector<uint32_t>& near_batch) const {
    // The best accumulation of each micro-batch.
    std::vector<uint32_t> best;
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const BatchPair& batch = items_[i].batch;
      if (!tried_[i] && batch.micro_batch == now.micro_batch &&
          batch.grad_accum == now.grad_accum && !UnlikelyToFit(i)) {
        same_batch.push_back(i);
      }
      const bool same = !best.empty() && items_[best.back()].batch.micro_batch == batch.micro_batch;
      if (!same) {
        best.push_back(i);
      } else if (items_[best.back()] < items_[i]) {
        best.back() = i;
      }
    }
    const auto at = std::find_if(best.begin(), best.end(), [&](uint32_t i) {
      return items_[i].batch.micro_batch >= now.micro_batch;
    });
    const auto first = at - std::min<std::ptrdiff_t>(2, at - best.begin());
    const auto last = at + std::min<std::ptrdiff_t>(3, best.end() - at);
    for (auto i = first; i != last; ++i) {
      if (!tried_[*i] && !UnlikelyToFit(*i)) near_batch.push_back(*i);
    }
  }

  // Whatever could be better, best bound first, what is unlikely to fit last; choices without
  // offload before those with: where they fit, few of the many others can still win.
  void Prove() {
    std::array<std::vector<uint32_t>, 2> open;
    for (uint32_t i = 0; i < items_.size(); ++i) {
      if (tried_[i]) continue;
      open[Offloads(judge_.CandidateOfGroup(items_[i].group)) ? 1 : 0].push_back(i);
    }
    for (std::vector<uint32_t>& items : open) {
      std::vector<uint32_t> unlikely;
      ProveAmong(std::move(items), &unlikely);
      ProveAmong(std::move(unlikely), nullptr);
    }
  }

  // `unlikely`: takes what is not worth a try yet.
  void ProveAmong(std::vector<uint32_t> heap, std::vector<uint32_t>* unlikely) {
    const ByBound worse{items_};
    std::make_heap(heap.begin(), heap.end(), worse);
    while (!heap.empty()) {
      const Score& next = items_[heap.front()].bound;
      if (answer_.found && !CouldBeat(question_.objective, next, score_)) {
        for (const uint32_t i : heap) judge_.stats.cut_by_score += MembersOf(i);
        return;
      }
      // While nothing fits there is nothing to hand out: look longer.
      if (Over(answer_.found ? budget_ : 4 * budget_)) {
        for (const uint32_t i : heap) left_ += MembersOf(i);
        answer_.gave_up = true;
        if (answer_.found) answer_.gap = std::max(answer_.gap, GapOf(score_, next));
        return;
      }
      std::pop_heap(heap.begin(), heap.end(), worse);
      const uint32_t i = heap.back();
      heap.pop_back();
      if (unlikely != nullptr && UnlikelyToFit(i)) {
        unlikely->push_back(i);
        continue;
      }
      behind_.clear();
      Try(i);
      for (const uint32_t behind : behind_) {
        heap.push_back(behind);
        std::push_heap(heap.begin(), heap.end(), worse);
      }
    }
  }

  uint64_t MembersOf(uint32_t i) const {
    return static_cast<uint64_t>(items_[i].end - items_[i].member);
  }

  // Takes the simplest of those that are as fast as the best, as far as the model can tell: of the
  // least complexity that has one, the fastest. What was judged before has no part in it, so that a
  // question has one answer.
  void PreferSimple() {
    const Found fastest = *answer_.found;
    const bool by_gpus = question_.objective == Objective::kFewestGpus;
    const auto bound_of = [&](uint32_t i) {
      return by_gpus ? items_[i].bound.secondary : items_[i].bound.primary;
    };
    const std::array<int, 5> present = Complexity(fastest.candidate);
    std::map<std::array<int, 5>, std::vector<uint32_t>> simpler;
    for (uint32_t i = 0; i < items_.size(); ++i) {
      if (bound_of(i) < TieFloor(Merit(fastest))) continue;
      const Candidate c = judge_.CandidateOf(items_[i]);
      if (c.gpus != fastest.candidate.gpus) continue;
      if (const std::array<int, 5> complexity = Complexity(c); complexity < present) {
        simpler[complexity].push_back(i);
      }
    }
    for (auto& [complexity, items] : simpler) {
      std::sort(items.begin(), items.end(),
                [&](uint32_t a, uint32_t b) { return items_[b] < items_[a]; });
      std::optional<Found> taken;
      for (const uint32_t i : items) {
        if (taken && bound_of(i) <= Merit(*taken)) break;
        if (judge_.TooLarge(question_, items_[i])) continue;
        if (Over(budget_ + budget_ / 8)) {
          answer_.gap = std::max(answer_.gap, kTieMargin);
          break;
        }
        const JudgeStats counted = judge_.stats;
        const std::optional<Found> found = judge_.Try(question_, items_[i]);
        // What becomes of it was counted before.
        judge_.stats.judged = counted.judged;
        judge_.stats.cut_by_memory = counted.cut_by_memory;
        judge_.stats.cut_by_score = counted.cut_by_score;
        if (!found || Merit(*found) < TieFloor(Merit(fastest))) continue;
        if (!taken || Merit(*taken) < Merit(*found)) taken = found;
      }
      if (!taken) continue;
      answer_.found = taken;
      return;
    }
  }

  Judge& judge_;
  const Question& question_;
  const uint64_t budget_;
  JudgeStats started_;
  std::vector<Item> items_;  // by group
  std::vector<Range> ranges_;
  std::vector<uint8_t> tried_;
  std::vector<uint32_t> behind_;  // items that the last tries left behind
  std::map<HuntKind, Class> classes_;
  Answer answer_;
  Score score_;
  uint32_t classified_ = 0;  // items that are in classes
  uint64_t left_ = 0;
};

}  // namespace

Hunted RunHunt(Judge& judge, const Question& question) {
  Hunt hunt(judge, question);
  Hunted hunted;
  hunted.answer = hunt.Run();
  hunted.left = hunt.left();
  return hunted;
}

Hunted RunHuntByBruteForce(Judge& judge, const Question& question) {
  return {Hunt(judge, question).RunBruteForce(), 0};
}

}  // namespace zeroplan
