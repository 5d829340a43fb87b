#include "planner/advice/flips.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace zeroplan {
namespace {

// One answer of many, so that less will do.
constexpr uint64_t kBudget = kInstructionBudget / 4;
constexpr int64_t kMaxBatch = 2'147'483'647;  // sequences a step; no one asks for more

// Two sides of a change, at most `near` apart.
struct Sides {
  double same, changed;
};

// REQUIRES: !changed(same), changed(other); either may be the larger.
Sides Bisect(double same, double other, const std::function<bool(double)>& changed,
             double near = 0.005) {
  while (std::abs(other - same) > near * std::min(same, other)) {
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
  explicit Budget(const ChoiceSearch& searcher)
      : searcher_(searcher), end_(searcher.instructions_lowered() + kFlipBudget) {}
  void Check() const {
    if (searcher_.instructions_lowered() > end_) throw BudgetSpent{};
  }

 private:
  const ChoiceSearch& searcher_;
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
  ByMemory(ChoiceSearch& searcher, const Found& now)
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
    return static_cast<double>(searcher_.GpuBytesNeeded(found));
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
  // Where answers change a little at every byte: to 0.02 %.
  std::optional<Flip> Nearly(double capacity, bool larger) {
    constexpr double kFar = 16, kNear = 2e-4;
    const double limit = larger ? kFar * capacity : capacity / kFar;
    const auto changed = [this](double bytes) { return Changed(bytes); };
    if (!Changed(limit)) return std::nullopt;
    const Sides sides = Bisect(capacity, limit, changed, kNear);
    const std::optional<Found> after = With(sides.changed);
    return Flip{std::floor(sides.changed) + (larger ? 0 : 1), after, gap_};
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
  ChoiceSearch& searcher_;
  const Found& now_;
  const Budget budget_;
  Question question_;
  double gap_ = 0;
};

}  // namespace

std::optional<Flip> MemoryFlip(ChoiceSearch& searcher, const Found& now, bool larger,
                               bool* gave_up) {
  return WithinBudget(
      [&]() -> std::optional<Flip> {
        ByMemory by(searcher, now);
        const auto capacity =
            static_cast<double>(searcher.ClusterOf(now.candidate).cluster.gpu_capacity_bytes);
        if (!searcher.needs_are_exact()) return by.Nearly(capacity, larger);
        // Down to what the answer holds, nothing can change.
        const double start = larger ? capacity : by.Needed(now);
        double limit = 16 * capacity;
        if (!larger) {
          const Answer least = by.LeastThatFits();
          if (!least.found) return std::nullopt;
          limit = by.Needed(*least.found);
          if (!by.Changed(limit)) return Flip{limit, std::nullopt, least.gap};
        }
        by.Among(CoarseChoices(searcher.inputs().space, now.candidate));
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

std::optional<Flip> FindBatchFlip(ChoiceSearch& searcher, const Candidate& now, bool larger) {
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

std::optional<Flip> BatchFlip(ChoiceSearch& searcher, const Found& now, bool larger,
                              bool* gave_up) {
  return WithinBudget([&] { return FindBatchFlip(searcher, now.candidate, larger); }, gave_up);
}

namespace {

constexpr int kRounds = 8;

}  // namespace

std::optional<Flip> BandwidthFlip(ChoiceSearch& searcher, const Found& now, const ScaledLink& link,
                                  bool faster, bool* gave_up) {
  const int stage = now.candidate.stage;
  const std::unique_ptr<OtherBandwidths> pool = searcher.AtOtherBandwidths(now, link);
  // The pool knows the present bandwidth's best; where the whole space has a better one beyond the
  // flip, that joins the pool and the flip moves.
  for (int round = 0; round < kRounds; ++round) {
    auto changed = [&](double scale) { return pool->BestKnown(scale).candidate.stage != stage; };
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
      const Answer answer = pool->Best(scale);
      const bool flipped = answer.found->candidate.stage != stage;
      const bool expected = found && !beyond;
      if (!beyond) beyond = answer;
      if (flipped == expected) continue;
      if (!pool->Learn(answer.found->candidate)) {  // a tie: it flips there and back
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
