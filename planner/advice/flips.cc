#include "planner/advice/flips.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace zeroplan {
namespace {

// One answer of many, so that less will do.
constexpr uint64_t kBudget = kInstructionBudget / 4;
// Of the few whole searches beside a crossover of bandwidth, where communication makes bounds
// loose.
constexpr uint64_t kLinkBudget = kInstructionBudget / 10;
constexpr int64_t kMaxBatch = 2'147'483'647;  // sequences a step; no one asks for more

// Fewer choices to bisect over: no part offloads, recompute of single layers, first buckets,
// besides what the present answer has of these.
std::function<bool(const Candidate&)> Coarse(const SearchSpace& space, const Candidate& now) {
  const Buckets buckets = space.buckets.front();
  const Gathering gathering = space.gathering.front();
  return [=](const Candidate& c) {
    return (c.recompute.every <= 1 || c.recompute == now.recompute) &&
           (c.optimizer.ratio == 1 || c.optimizer.ratio == now.optimizer.ratio) &&
           (c.buckets == buckets || c.buckets == now.buckets) &&
           (c.gathering == gathering || c.gathering == now.gathering);
  };
}

// Two sides of a change, at most 0.5 % apart.
struct Sides {
  double same, changed;
};

// REQUIRES: !changed(same), changed(other); either may be the larger.
Sides Bisect(double same, double other, const std::function<bool(double)>& changed) {
  while (std::abs(other - same) > 0.005 * std::min(same, other)) {
    const double middle = std::sqrt(same * other);
    (changed(middle) ? other : same) = middle;
  }
  return {same, other};
}

}  // namespace

bool SameKind(const Candidate& a, const Candidate& b) {
  return a.stage == b.stage && a.optimizer.device == b.optimizer.device && a.param == b.param &&
         a.recompute.kind == b.recompute.kind;
}

namespace {

// Thrown within this file where a flip costs too much.
struct BudgetSpent {};

class Budget {
 public:
  explicit Budget(const Searcher& searcher)
      : searcher_(searcher), end_(searcher.instructions_lowered() + kFlipBudget) {}
  void Check() const {
    if (searcher_.instructions_lowered() > end_) throw BudgetSpent{};
  }

 private:
  const Searcher& searcher_;
  const uint64_t end_;
};

std::optional<Flip> WithinBudget(const std::function<std::optional<Flip>()>& find, bool* gave_up) {
  try {
    return find();
  } catch (const BudgetSpent&) {
    if (gave_up != nullptr) *gave_up = true;
    return std::nullopt;
  }
}

// The answer by GPU memory.
class ByMemory {
 public:
  ByMemory(Searcher& searcher, const Found& now)
      : searcher_(searcher), now_(now), budget_(searcher) {
    question_.objective = searcher.inputs().objective;
    question_.instruction_budget = kBudget;
  }

  void Among(std::function<bool(const Candidate&)> among) { question_.among = std::move(among); }
  // The answer with so much memory; its gap is gap_ then.
  std::optional<Found> With(double bytes) {
    budget_.Check();
    question_.gpu_capacity_bytes = static_cast<uint64_t>(bytes);
    const Answer answer = searcher_.Best(question_);
    if (answer.gave_up) throw BudgetSpent{};
    gap_ = answer.gap;
    return answer.found;
  }
  // The choice that takes least.
  Answer LeastThatFits() {
    Question least = question_;
    least.objective = Objective::kHeadroom;
    least.gpu_capacity_bytes = UINT64_MAX / 4;
    return searcher_.Best(least);
  }
  bool Changed(double bytes) { return !Same(With(bytes)); }
  bool Same(const std::optional<Found>& found) const {
    return found && SameKind(found->candidate, now_.candidate);
  }

  double Needed(const Found& found) const {
    return static_cast<double>(GpuBytesNeeded(searcher_.inputs(), found));
  }

  // Two sides of a change between `same` and `changed`, where a bisection of fewer choices saw it.
  // None: `limit` has the present kind too.
  std::optional<Sides> Confirm(Sides sides, double start, double limit) {
    auto changed = [this](double bytes) { return Changed(bytes); };
    if (Changed(sides.same)) return Bisect(start, sides.same, changed);
    if (Changed(sides.changed)) return sides;
    if (!Changed(limit)) return std::nullopt;
    return Bisect(sides.changed, limit, changed);
  }

  // The very byte: an answer stays one down to what its program holds.
  std::optional<Flip> Upward(Sides sides) {
    std::optional<Found> after = With(sides.changed);
    if (!after) return std::nullopt;
    for (;;) {
      const double gap = gap_;
      const auto at = Needed(*after);
      if (at <= sides.same) return Flip{at, after, gap};
      const std::optional<Found> below = With(at - 1);
      if (Same(below)) return Flip{at, after, gap};
      after = below;
    }
  }
  std::optional<Flip> Downward(Sides sides) {
    std::optional<Found> before = With(sides.same);
    if (!before) return std::nullopt;
    for (;;) {
      const auto at = Needed(*before);
      const std::optional<Found> below = With(at - 1);
      if (!Same(below)) return Flip{at, below, gap_};
      before = below;
    }
  }

 private:
  Searcher& searcher_;
  const Found& now_;
  const Budget budget_;
  Question question_;
  double gap_ = 0;
};

}  // namespace

std::optional<Flip> MemoryFlip(Searcher& searcher, const Found& now, bool larger, bool* gave_up) {
  return WithinBudget(
      [&]() -> std::optional<Flip> {
        ByMemory by(searcher, now);
        const auto capacity =
            static_cast<double>(searcher.ClusterOf(now.candidate).cluster.gpu_capacity_bytes);
        // Down to what the answer holds, nothing can change.
        const double start = larger ? capacity : by.Needed(now);
        double limit = 16 * capacity;
        if (!larger) {
          const Answer least = by.LeastThatFits();
          if (!least.found) return std::nullopt;
          limit = by.Needed(*least.found);
          if (!by.Changed(limit)) return Flip{limit, std::nullopt, least.gap};
        }
        by.Among(Coarse(searcher.inputs().space, now.candidate));
        if (!by.Changed(limit)) return std::nullopt;
        const Sides coarse = Bisect(start, limit, [&](double bytes) { return by.Changed(bytes); });
        by.Among(nullptr);
        const std::optional<Sides> sides = by.Confirm(coarse, start, limit);
        if (!sides) return std::nullopt;
        return larger ? by.Upward(*sides) : by.Downward(*sides);
      },
      gave_up);
}

namespace {

std::optional<Flip> FindBatchFlip(Searcher& searcher, const Candidate& now, bool larger) {
  const Budget budget(searcher);
  Question question;
  question.objective = searcher.inputs().objective;
  question.instruction_budget = kBudget;
  int64_t batch = now.micro_batch * now.grad_accum * now.gpus;
  for (int i = 0; i < 6; ++i) {
    if (!larger && (batch % 2 != 0 || batch / 2 < now.gpus)) return std::nullopt;
    if (larger && batch > kMaxBatch / 2) return std::nullopt;
    batch = larger ? batch * 2 : batch / 2;
    budget.Check();
    question.global_batch = batch;
    const Answer answer = searcher.Best(question);
    if (answer.gave_up) throw BudgetSpent{};
    if (answer.found && !SameKind(answer.found->candidate, now)) {
      return Flip{static_cast<double>(batch), answer.found, answer.gap};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Flip> BatchFlip(Searcher& searcher, const Found& now, bool larger, bool* gave_up) {
  return WithinBudget([&] { return FindBatchFlip(searcher, now.candidate, larger); }, gave_up);
}

namespace {

// Choices of every stage, lowered once, whose times are played again for other links.
class Pool {
 public:
  Pool(Searcher& searcher, const Found& now) : searcher_(searcher) {
    Add(now.candidate);
    const auto coarse = Coarse(searcher.inputs().space, now.candidate);
    for (int stage : searcher.inputs().space.stages) {
      for (OffloadDevice device : {OffloadDevice::kNone, OffloadDevice::kCpu}) {
        for (RecomputeKind recompute :
             {RecomputeKind::kNone, RecomputeKind::kSelective, RecomputeKind::kFull}) {
          Question question;
          question.instruction_budget = kLinkBudget;
          question.among = [&](const Candidate& c) {
            return coarse(c) && c.gpus == now.candidate.gpus && c.stage == stage &&
                   c.optimizer.device == device && c.param == OffloadDevice::kNone &&
                   c.recompute.kind == recompute;
          };
          const Answer answer = searcher.Best(question);
          if (answer.found) Add(answer.found->candidate);
        }
      }
    }
  }

  // False if the pool has it.
  bool Add(const Candidate& candidate) {
    if (std::find(candidates_.begin(), candidates_.end(), candidate) != candidates_.end()) {
      return false;
    }
    candidates_.push_back(candidate);
    lowered_.push_back(searcher_.Lowered(candidate));
    return true;
  }

  // The fastest; of those as fast the simplest, as a search has it.
  Found Best(const CostModel& costs) const {
    StepTimer timer(costs);
    std::vector<Found> all;
    double most = 0;
    const int64_t seq_len = searcher_.inputs().base.batch.seq_len;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const Candidate& c = candidates_[i];
      const LoweredChoice& lowered = *lowered_[i];
      const double seconds = timer.Play(lowered.step).Of(c.grad_accum).total_seconds;
      const int64_t tokens = c.micro_batch * c.grad_accum * c.gpus * seq_len;
      const Cluster& cluster = searcher_.ClusterOf(c).cluster;
      all.push_back({c, static_cast<double>(tokens) / seconds, seconds,
                     TotalsOf(lowered.arena_bytes, lowered.outside, cluster).gpu_bytes});
      most = std::max(most, Merit(all.back()));
    }
    std::erase_if(all, [&](const Found& f) { return Merit(f) < most / (1 + kTieMargin); });
    return *std::min_element(all.begin(), all.end(), [](const Found& a, const Found& b) {
      const auto x = Complexity(a.candidate), y = Complexity(b.candidate);
      return x != y ? x < y : Merit(a) > Merit(b);
    });
  }

 private:
  Searcher& searcher_;
  std::vector<Candidate> candidates_;
  std::vector<std::shared_ptr<const LoweredChoice>> lowered_;
};

// The answer with links of that scale, as far as a search gets.
Answer SearchScaled(const Searcher& searcher, const Found& now, const CostModel& costs) {
  SearchInputs scaled = searcher.inputs();
  SearchCluster cluster = searcher.ClusterOf(now.candidate);
  cluster.costs = &costs;
  scaled.space.gpus = {now.candidate.gpus};
  scaled.clusters = {cluster};
  Question question;
  question.objective = scaled.objective;
  question.instruction_budget = kLinkBudget;
  return Searcher(std::move(scaled), searcher).Best(question);
}

// The better of what the pool holds and what a search finds: either may know more. What the search
// finds the pool and the searcher are told of.
Answer BestScaled(Pool& pool, Searcher& searcher, const Found& now, const CostModel& costs) {
  const Found known = pool.Best(costs);
  Answer answer = SearchScaled(searcher, now, costs);
  const bool knows_best =
      answer.gap == 0 || !answer.found || Merit(*answer.found) * (1 + kTieMargin) >= Merit(known);
  if (answer.found && knows_best) {
    searcher.Consider(answer.found->candidate);
    return answer;
  }
  answer.found = known;
  return answer;
}

constexpr int kRounds = 8;

}  // namespace

std::optional<Flip> BandwidthFlip(Searcher& searcher, const Found& now, const ScaledCosts& costs,
                                  bool faster, bool* gave_up) {
  const int gpus = now.candidate.gpus, stage = now.candidate.stage;
  Pool pool(searcher, now);
  // The pool knows the present bandwidth's best; where the whole space has a better one beyond the
  // flip, that joins the pool and the flip moves.
  for (int round = 0; round < kRounds; ++round) {
    auto changed = [&](double scale) {
      return pool.Best(costs(gpus, scale)).candidate.stage != stage;
    };
    if (changed(1)) break;  // the present answer is not the best there is
    double last = 1, next = 1;
    do {
      last = next;
      next = faster ? next * 2 : next / 2;
    } while (!changed(next) && next < 64 && next > 1.0 / 64);
    const bool found = changed(next);
    const double margin = faster ? kCrossoverMargin : 1 / kCrossoverMargin;
    bool joined = false;
    // Where the pool sees no change, or just beyond the one it sees, and just before that.
    std::vector<double> scales(kCheckedScales.begin(), kCheckedScales.end());
    double at = next;
    if (found) {
      at = Bisect(last, next, changed).changed;
      scales = {at * margin, at / margin};
    } else if (!faster) {
      for (double& scale : scales) scale = 1 / scale;
    }
    std::optional<Answer> beyond;
    for (const double scale : scales) {
      const Answer answer = BestScaled(pool, searcher, now, costs(gpus, scale));
      const bool flipped = answer.found->candidate.stage != stage;
      const bool expected = found && !beyond;
      if (!beyond) beyond = answer;
      if (flipped == expected) continue;
      if (!pool.Add(answer.found->candidate)) {  // a tie: it flips there and back
        if (gave_up != nullptr) *gave_up = true;
        return std::nullopt;
      }
      joined = true;
      break;
    }
    if (joined) continue;
    if (!found) return std::nullopt;
    return Flip{at, beyond->found, beyond->gap};
  }
  if (gave_up != nullptr) *gave_up = true;
  return std::nullopt;
}

}  // namespace zeroplan
