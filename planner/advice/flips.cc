#include "planner/advice/flips.h"

#include <algorithm>
#include <cmath>

namespace zeroplan {
namespace {

// One answer of many, so that less will do.
constexpr uint64_t kBudget = kInstructionBudget / 12;
// Of the few whole searches beside a crossover of bandwidth, where communication makes bounds
// loose.
constexpr uint64_t kLinkBudget = kInstructionBudget / 5;
constexpr int64_t kMaxBatch = 2'147'483'647;  // sequences a step; no one asks for more

// Fewer choices to bisect over: no part offloads, recompute of single layers, first buckets,
// besides what the present answer has of these.
std::function<bool(const Candidate&)> Coarse(const SearchSpace& space, const Candidate& now) {
  const uint64_t reduce = space.reduce_bucket_elements.front();
  const uint64_t prefetch = space.prefetch_bucket_elements.front();
  return [=](const Candidate& c) {
    return (c.recompute.every <= 1 || c.recompute == now.recompute) &&
           (c.optimizer.ratio == 1 || c.optimizer.ratio == now.optimizer.ratio) &&
           (c.reduce_bucket_elements == reduce ||
            c.reduce_bucket_elements == now.reduce_bucket_elements) &&
           (c.prefetch_bucket_elements == prefetch ||
            c.prefetch_bucket_elements == now.prefetch_bucket_elements);
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
  std::optional<Found> Answer(double bytes) {
    budget_.Check();
    question_.gpu_capacity_bytes = static_cast<uint64_t>(bytes);
    bool gave_up = false;
    const std::optional<Found> found = searcher_.Best(question_, &gave_up);
    if (gave_up) throw BudgetSpent{};
    return found;
  }
  bool Changed(double bytes) { return !Same(Answer(bytes)); }
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
    std::optional<Found> after = Answer(sides.changed);
    if (!after) return std::nullopt;
    for (;;) {
      const auto at = Needed(*after);
      if (at <= sides.same) return Flip{at, after};
      const std::optional<Found> below = Answer(at - 1);
      if (Same(below)) return Flip{at, after};
      after = below;
    }
  }
  std::optional<Flip> Downward(Sides sides) {
    std::optional<Found> before = Answer(sides.same);
    if (!before) return std::nullopt;
    for (;;) {
      const auto at = Needed(*before);
      const std::optional<Found> below = Answer(at - 1);
      if (!Same(below)) return Flip{at, below};
      before = below;
    }
  }

 private:
  Searcher& searcher_;
  const Found& now_;
  const Budget budget_;
  Question question_;
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
        const double limit = larger ? 16 * capacity : capacity / 64;
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
    question.among = Coarse(searcher.inputs().space, now);
    std::optional<Found> found = searcher.Best(question);
    if (found && SameKind(found->candidate, now)) continue;
    question.among = nullptr;
    found = searcher.Best(question);
    if (found && !SameKind(found->candidate, now)) return Flip{static_cast<double>(batch), found};
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
          if (const std::optional<Found> found = searcher.Best(question)) Add(found->candidate);
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
    programs_.push_back(searcher_.LowerCandidate(candidate));
    return true;
  }

  // The fastest.
  Found Best(const CostModel& costs) const {
    StepTimer timer(costs);
    Found best;
    for (size_t i = 0; i < programs_.size(); ++i) {
      const Program& program = programs_[i];
      const BatchSpec& batch = program.setup.batch;
      const double seconds = timer.Time(program).total_seconds;
      const double rate = static_cast<double>(batch.global_batch() * batch.seq_len) / seconds;
      if (Merit(candidates_[i], rate) <= Merit(best)) continue;
      const Cluster& cluster = searcher_.ClusterOf(candidates_[i]).cluster;
      best = {candidates_[i], rate, seconds, TotalsOf(program.arena_bytes, cluster).gpu_bytes};
    }
    return best;
  }

 private:
  Searcher& searcher_;
  std::vector<Candidate> candidates_;
  std::vector<Program> programs_;
};

// The answer with links of that scale, as far as a search gets.
std::optional<Found> SearchScaled(const Searcher& searcher, const Found& now,
                                  const CostModel& costs) {
  SearchInputs scaled = searcher.inputs();
  SearchCluster cluster = searcher.ClusterOf(now.candidate);
  cluster.costs = &costs;
  scaled.space.gpus = {now.candidate.gpus};
  scaled.clusters = {cluster};
  Question question;
  question.objective = scaled.objective;
  question.instruction_budget = kLinkBudget;
  return Searcher(std::move(scaled)).Best(question);
}

// The better of what the pool holds and what a search finds: either may know more.
Found BestScaled(const Pool& pool, const Searcher& searcher, const Found& now,
                 const CostModel& costs) {
  const Found known = pool.Best(costs);
  const std::optional<Found> found = SearchScaled(searcher, now, costs);
  return found && Merit(*found) > Merit(known) ? *found : known;
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
    const double at = found ? Bisect(last, next, changed).changed : next;
    const double margin = faster ? 1.01 : 1 / 1.01;
    const Found beyond = BestScaled(pool, searcher, now, costs(gpus, at * margin));
    const bool flipped = beyond.candidate.stage != stage;
    if (!found && !flipped) return std::nullopt;
    if (found != flipped) {
      if (!pool.Add(beyond.candidate)) break;  // a tie: it flips there and back
      continue;
    }
    const Found before = BestScaled(pool, searcher, now, costs(gpus, at / margin / margin));
    if (before.candidate.stage != stage) {
      if (!pool.Add(before.candidate)) break;
      continue;
    }
    return Flip{at, beyond};
  }
  if (gave_up != nullptr) *gave_up = true;
  return std::nullopt;
}

}  // namespace zeroplan
