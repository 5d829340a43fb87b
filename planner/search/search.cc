#include "planner/search/search.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "core/base/error.h"
#include "planner/search/judge.h"
#include "planner/search/memory_sweep.h"

namespace zeroplan {
namespace {
constexpr double kRounding = 1e-9;

// What is explored together: choices that differ in shares, segments, buckets and batch.
using Kind = std::array<int, 9>;
Kind KindOf(const Candidate& c) {
  return {c.gpus,
          c.stage,
          c.grouping.ranks,
          c.grouping.across_stage,
          static_cast<int>(c.optimizer.device),
          static_cast<int>(c.param),
          static_cast<int>(c.recompute.kind),
          InexactnessOf(c),
          c.pin_memory};
}

// In how many dimensions two groups differ.
int Distance(const Candidate& a, const Candidate& b) {
  return (a.gpus != b.gpus) + (a.stage != b.stage) + !(a.grouping == b.grouping) +
         !(a.optimizer == b.optimizer) + (a.param != b.param) + (a.recompute != b.recompute) +
         !(a.buckets == b.buckets) + !(a.gathering == b.gathering) + (a.states != b.states) +
         (a.products != b.products) + (a.sub_group_elements != b.sub_group_elements) +
         (a.pin_memory != b.pin_memory);
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
      return bound.primary > score.primary * (1 + kRounding);
    case Objective::kHeadroom:
      return score < bound;
    case Objective::kFewestGpus:
      return bound.primary > score.primary || (bound.primary == score.primary &&
                                               bound.secondary > score.secondary * (1 + kRounding));
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
    if (question_.any) return answer_.found ? answer_ : FirstThatFits();
    if (question_.objective == Objective::kThroughput) {
      for (uint32_t i = 0; i < items_.size(); ++i) {
        classes_[KindOf(judge_.CandidateOfGroup(items_[i].group))].items.push_back(i);
      }
      for (auto& [kind, all] : classes_) {
        std::make_heap(all.items.begin(), all.items.end(), ByBound{items_});
      }
      for (const uint64_t quarter : {1, 2}) {
        Explore(quarter * budget_ / 4);
        Improve(quarter * budget_ / 4 + budget_ / 4);
      }
    }
    if (!answer_.found && NothingFits()) return answer_;
    Prove();
    if (answer_.found && question_.objective != Objective::kHeadroom) PreferSimple();
    if (answer_.found) answer_.gave_up = false;
    return answer_;
  }

  Answer RunBruteForce() {
    items_ = judge_.Open(question_, false);
    for (const Item& item : items_) {
      const std::optional<Found> found = judge_.Try(question_, item);
      if (found) Take(*found);
    }
    return answer_;
  }

  uint64_t cut_by_score() const { return cut_by_score_; }
  uint64_t left() const { return left_; }

 private:
  // Where each group's items lie, by rising micro-batch.
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

  void Index() {
    tried_.assign(items_.size(), 0);
    ranges_.assign(judge_.group_count(), {});
    for (uint32_t i = 0; i < items_.size(); ++i) {
      Range& range = ranges_[items_[i].group];
      if (range.end == 0) range.begin = i;
      range.end = i + 1;
    }
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
    judge_.stats.judged = counted.judged;
    if (answer.found) Take(*answer.found);
    return !answer.found && !answer.gave_up;
  }

  // The first that fits, those first whose bound and what programs like them took beyond theirs are
  // least. What needs no less of the GPU than one that is too large for it is not lowered.
  Answer FirstThatFits() {
    // Alike: all but the share of the states on the host, and the batch.
    struct Queue {
      std::vector<uint32_t> items;  // the smallest last
      uint64_t beyond = 0;          // the least that a program took beyond its bound
    };
    std::map<Candidate, Queue> queues;
    for (uint32_t i = 0; i < items_.size(); ++i) {
      Candidate key = judge_.CandidateOfGroup(items_[i].group);
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
        if (!items.empty() && (next == nullptr || before(queue, *next))) next = &queue;
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
      const Candidate& small = judge_.CandidateOfGroup(item.group);
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
            NeedsNoLess(judge_.CandidateOfGroup(other.group), small)) {
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

  // Judges an item unless that was done; true if it is the best so far.
  bool Try(uint32_t i, std::optional<Found>* result = nullptr) {
    if (tried_[i]) return false;
    tried_[i] = 1;
    const Item& item = items_[i];
    if (judge_.TooLarge(question_, item)) {
      ++judge_.stats.cut_by_memory;
      return false;
    }
    const std::optional<Found> found = judge_.Try(question_, item);
    if (judge_.inputs().progress) judge_.inputs().progress(judge_.stats.lowered);
    if (result != nullptr) *result = found;
    return found && Take(*found);
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
      for (uint32_t g = 0; g < ranges_.size(); ++g) {
        if (Distance(judge_.CandidateOfGroup(g), now) > 1) continue;
        AddNear(ranges_[g], now, same_batch, near_batch);
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

  // Whatever could be better, best bound first; choices without offload before those with: where
  // they fit, few of the many others can still win.
  void Prove() {
    std::array<std::vector<uint32_t>, 2> open;
    for (uint32_t i = 0; i < items_.size(); ++i) {
      if (tried_[i]) continue;
      open[Offloads(judge_.CandidateOfGroup(items_[i].group)) ? 1 : 0].push_back(i);
    }
    for (std::vector<uint32_t>& heap : open) ProveAmong(std::move(heap));
  }

  void ProveAmong(std::vector<uint32_t> heap) {
    const ByBound worse{items_};
    std::make_heap(heap.begin(), heap.end(), worse);
    while (!heap.empty()) {
      const Score& next = items_[heap.front()].bound;
      if (answer_.found && !CouldBeat(question_.objective, next, score_)) {
        cut_by_score_ += heap.size();
        return;
      }
      // While nothing fits there is nothing to hand out: look longer.
      if (Over(answer_.found ? budget_ : 4 * budget_)) {
        left_ += heap.size();
        answer_.gave_up = true;
        if (answer_.found) answer_.gap = std::max(answer_.gap, GapOf(score_, next));
        return;
      }
      std::pop_heap(heap.begin(), heap.end(), worse);
      Try(heap.back());
      heap.pop_back();
    }
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
      const Candidate& c = judge_.CandidateOfGroup(items_[i].group);
      if (bound_of(i) < TieFloor(Merit(fastest)) || c.gpus != fastest.candidate.gpus) continue;
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
        const std::optional<Found> found = judge_.Try(question_, items_[i]);
        --judge_.stats.judged;  // what becomes of it was counted before
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
  const JudgeStats started_;
  std::vector<Item> items_;  // by group
  std::vector<Range> ranges_;
  std::vector<uint8_t> tried_;
  std::map<Kind, Class> classes_;
  Answer answer_;
  Score score_;
  uint64_t cut_by_score_ = 0, left_ = 0;
};

}  // namespace

struct Searcher::Impl {
  Impl(SearchInputs inputs, std::shared_ptr<LoweredPrograms> programs)
      : judge(std::move(inputs), std::move(programs)) {}

  const SearchInputs& in() const { return judge.inputs(); }

  StageBest BestOfStage(int stage, const std::optional<Found>& winner, bool brute_force) {
    Question question;
    question.objective = in().objective;
    question.among = [stage](const Candidate& c) { return c.stage == stage; };
    StageBest best;
    best.stage = stage;
    std::optional<Candidate> shown;
    if (winner && winner->candidate.stage == stage) {
      shown = best.candidate = winner->candidate;
    } else {
      if (winner) {
        question.most_programs = kLoserBudget;
        question.instruction_budget = kInstructionBudget / 8;
      }
      Hunt hunt(judge, question);
      const Answer answer = brute_force ? hunt.RunBruteForce() : hunt.Run();
      best.proven = answer.gap == 0;
      if (answer.found) best.candidate = answer.found->candidate;
      shown = answer.found ? best.candidate : judge.Closest(question);
    }
    if (shown) best.estimate = judge.Estimate(*shown);
    return best;
  }

  SearchResult Run(bool brute_force) {
    const auto start = std::chrono::steady_clock::now();
    const JudgeStats before = judge.stats;
    SearchResult result;
    Question all;
    all.objective = in().objective;
    Hunt hunt(judge, all);
    Answer answer = brute_force ? hunt.RunBruteForce() : hunt.Run();
    const JudgeStats after = judge.stats;
    result.stats = {after.candidates - before.candidates,
                    after.cut_by_memory - before.cut_by_memory,
                    hunt.cut_by_score(),
                    after.judged - before.judged,
                    hunt.left(),
                    0,
                    0};
    // What is found for a stage may be better than what was found for all.
    constexpr int kRounds = 3;
    for (int round = 0; round < kRounds; ++round) {
      result.stages.clear();
      result.best.reset();
      for (int stage : in().space.stages) {
        if (answer.found && answer.found->candidate.stage == stage) {
          result.best = result.stages.size();
        }
        result.stages.push_back(BestOfStage(stage, answer.found, brute_force));
      }
      if (brute_force || !answer.found) break;
      const std::optional<Found> known = judge.BestKnown(all);
      if (!known || Merit(*known) <= Merit(*answer.found) * (1 + kTieMargin)) break;
      Question again = all;
      again.instruction_budget = 0;
      answer = Hunt(judge, again).Run();
    }
    result.gap = answer.gap;
    result.gave_up = answer.gave_up;
    result.stats.lowered = judge.stats.lowered - before.lowered;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    result.stats.seconds = seconds.count();
    return result;
  }

  Judge judge;
};

const SearchCluster& ChoiceSearch::ClusterOf(const Candidate& candidate) const {
  const SearchInputs& in = inputs();
  const auto at = std::find(in.space.gpus.begin(), in.space.gpus.end(), candidate.gpus);
  ZEROPLAN_CHECK(at != in.space.gpus.end());
  return in.clusters[static_cast<size_t>(at - in.space.gpus.begin())];
}

std::unique_ptr<ChoiceSearch> MakeSearch(SearchInputs inputs) {
  const Runtime& runtime = *inputs.runtime;
  return runtime.Search(std::move(inputs));
}

Searcher::Searcher(SearchInputs inputs)
    : impl_(std::make_unique<Impl>(std::move(inputs), nullptr)) {}
Searcher::Searcher(SearchInputs inputs, const Searcher& like)
    : impl_(std::make_unique<Impl>(std::move(inputs), like.impl_->judge.programs())) {}
Searcher::~Searcher() = default;

SearchResult Searcher::Run() { return impl_->Run(false); }
Answer Searcher::Best(const Question& question) { return Hunt(impl_->judge, question).Run(); }
std::optional<Found> Searcher::BestKnown() const { return impl_->judge.BestKnown({}); }
std::vector<JudgedChoice> Searcher::Judged() const {
  Question all;
  all.objective = inputs().objective;
  return impl_->judge.AllJudged(all);
}
Program Searcher::LowerCandidate(const Candidate& candidate) const {
  return impl_->judge.programs()->InFull(candidate);
}
ChoiceEstimate Searcher::EstimateCandidate(const Candidate& candidate) const {
  return impl_->judge.Estimate(candidate);
}
const SearchInputs& Searcher::inputs() const { return impl_->judge.inputs(); }
std::vector<MemoryAnswer> Searcher::AnswersByMemory(const Found& now, uint64_t most) {
  if (inputs().objective != Objective::kThroughput || inputs().space.gpus.size() > 1) {
    return AnswersAtMemories(*this, now, most);
  }
  return SweepMemory(impl_->judge, now, most);
}
uint64_t Searcher::instructions_lowered() const { return impl_->judge.stats.instructions; }
std::unique_ptr<ChoiceSearch> Searcher::Like(SearchInputs inputs) const {
  return std::make_unique<Searcher>(std::move(inputs), *this);
}
Answer Searcher::BestAtBandwidth(const Found& now, const OtherLink& link, double rate) {
  SearchInputs other = inputs();
  SearchCluster at = ClusterOf(now.candidate);
  const CostModel costs(link.Profile(rate), at.cluster.shape());
  at.costs = &costs;
  other.space.gpus = {now.candidate.gpus};
  other.clusters = {at};
  const size_t groupings = other.space.groupings.size();
  Question question;
  question.objective = other.objective;
  question.instruction_budget = kInstructionBudget / (groupings > 1 ? 5 : 10);
  Searcher search(std::move(other), *this);
  search.impl_->judge.TakeCompute(impl_->judge);
  const Answer answer = search.Best(question);
  if (answer.gap == 0 || groupings == 1) return answer;
  // Of so many groups what is best now may not have been looked at.
  Question present = question;
  present.instruction_budget = question.instruction_budget / 2;
  present.among = [kind = KindOf(now.candidate)](const Candidate& c) { return KindOf(c) == kind; };
  search.Best(present);
  question.instruction_budget = 0;
  return search.Best(question);
}
uint64_t Searcher::GpuBytesNeeded(const Found& found) const {
  const TrainSetup setup = SetupOf(found.candidate, inputs().base);
  return found.gpu_bytes + ExtraMemoryOf(inputs(), setup).Of(found.candidate.micro_batch) +
         ClusterOf(found.candidate).cluster.gpu_reserve_bytes;
}

SearchResult Search(const SearchInputs& inputs) { return Searcher(inputs).Run(); }

SearchResult SearchByBruteForce(const SearchInputs& inputs) {
  return Searcher(inputs).impl_->Run(true);
}

std::vector<CutCandidate> CutByMemory(const SearchInputs& inputs, size_t limit) {
  return Searcher(inputs).impl_->judge.CutByMemory(limit);
}

}  // namespace zeroplan
