#include "planner/search/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// Larger is better, first by primary.
struct Score {
  double primary = -std::numeric_limits<double>::infinity();
  double secondary = -std::numeric_limits<double>::infinity();

  bool operator<(const Score& other) const {
    return primary != other.primary ? primary < other.primary : secondary < other.secondary;
  }
};

Score MakeScore(Objective objective, const Candidate& candidate, double tokens_per_second,
                double gpu_bytes) {
  const double merit = Merit(candidate, tokens_per_second);
  switch (objective) {
    case Objective::kThroughput:
      return {merit, -gpu_bytes};
    case Objective::kHeadroom:
      return {-gpu_bytes, merit};
    case Objective::kFewestGpus:
      return {-static_cast<double>(candidate.gpus), merit};
  }
  return {};
}

Score ScoreOf(Objective objective, const Found& found) {
  return MakeScore(objective, found.candidate, found.tokens_per_second,
                   static_cast<double>(found.gpu_bytes));
}

// By how much `bound` is better than `score`, as a share of what they differ in first.
double GapOf(const Score& score, const Score& bound) {
  return bound.primary != score.primary ? std::abs(bound.primary / score.primary - 1)
                                        : std::abs(bound.secondary / score.secondary - 1);
}

// What a program says of a choice, for any accumulation of its kind.
struct Judged {
  MemoryTotals totals;
  MemoryTotals live;  // without placement's gaps on the GPU; never falls as the micro-batch grows
  StepParts parts;
};

struct Group {
  Candidate candidate;  // batch 1 x 1
  const SearchCluster* cluster = nullptr;
  GroupBound bound;
  ExtraMemory extra;
  int64_t too_large =
      std::numeric_limits<int64_t>::max();  // micro-batch whose live bytes do not fit
};

struct Item {
  Score score;
  uint32_t group = 0;
  BatchPair batch{};

  // Of equals the group that comes first, which is the simpler one, is better.
  bool operator<(const Item& other) const {
    if (score < other.score || other.score < score) return score < other.score;
    return group > other.group;
  }
};

}  // namespace

double Merit(const Candidate& candidate, double tokens_per_second) {
  return Offloads(candidate) ? tokens_per_second / (1 + kOffloadMargin) : tokens_per_second;
}

struct Searcher::Impl {
  explicit Impl(SearchInputs inputs)
      : in(std::move(inputs)),
        tensors(std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(in.model))),
        bounds(in.model, tensors, in.base, in.lower) {
    ZEROPLAN_CHECK(in.clusters.size() == in.space.gpus.size());
    CheckBatches();
    for (const Candidate& candidate : Groups(in.space)) AddGroup(candidate);
  }

  // What the caller has pinned may be more than can be planned.
  void CheckBatches() const {
    const SearchSpace& space = in.space;
    if (space.micro_batches.empty() || space.grad_accums.empty()) return;
    CheckMicroBatch(space.micro_batches.front(), in.base.batch.seq_len);
    TrainSetup least = in.base;
    least.batch.world_size = space.gpus.back();
    least.batch.micro_batch = space.micro_batches.front();
    least.batch.grad_accum = space.grad_accums.front();
    ValidateSetup(least, "command line");
  }

  void AddGroup(const Candidate& candidate) {
    Group group;
    group.candidate = candidate;
    group.cluster = &ClusterOf(candidate);
    const TrainSetup setup = SetupOf(candidate, in.base);
    if (in.excluded && in.excluded(setup)) return;
    group.extra = ExtraMemoryOf(in, setup);
    group.bound = bounds.Group(candidate, group.cluster->cluster, *group.cluster->costs);
    groups.push_back(std::move(group));
  }

  const SearchCluster& ClusterOf(const Candidate& candidate) const {
    const auto at = std::find(in.space.gpus.begin(), in.space.gpus.end(), candidate.gpus);
    ZEROPLAN_CHECK(at != in.space.gpus.end());
    return in.clusters[static_cast<size_t>(at - in.space.gpus.begin())];
  }

  MemoryBound BoundOf(const Group& group, int64_t micro_batch) {
    return Bounds::Memory(group.bound, ComputeOf(group, micro_batch));
  }

  const ComputeBound& ComputeOf(const Group& group, int64_t micro_batch) {
    return bounds.Compute(micro_batch, group.candidate.recompute, *group.cluster->costs);
  }

  // What the group's machines have, as the question wants it.
  static Capacity CapacityFor(const Group& group, const Question& question) {
    Cluster cluster = group.cluster->cluster;
    if (question.gpu_capacity_bytes) cluster.gpu_capacity_bytes = *question.gpu_capacity_bytes;
    return CapacityOf(cluster);
  }

  // With what is to be left free.
  static MemoryTotals Needs(const Group& group, int64_t micro_batch, MemoryTotals totals) {
    totals.gpu_bytes += group.extra.Of(micro_batch);
    return totals;
  }

  double Tokens(const Candidate& c, const BatchPair& batch) const {
    return static_cast<double>(batch.micro_batch) * static_cast<double>(batch.grad_accum) * c.gpus *
           static_cast<double>(in.base.batch.seq_len);
  }

  // Pairs of each number of GPUs, as `question` wants them.
  std::vector<std::vector<BatchPair>> Pairs(const Question& question) const {
    SearchSpace space = in.space;
    if (question.global_batch) {
      SetBatches(space, question.global_batch, in.base.batch.seq_len);
    }
    std::vector<std::vector<BatchPair>> pairs;
    for (int gpus : space.gpus) pairs.push_back(BatchPairs(space, gpus));
    return pairs;
  }

  // The candidates that may answer.
  std::vector<Item> Open(const Question& question, bool brute_force) {
    std::vector<Item> items;
    const std::vector<std::vector<BatchPair>> all_pairs = Pairs(question);
    for (uint32_t g = 0; g < groups.size(); ++g) {
      Group& group = groups[g];
      group.too_large = std::numeric_limits<int64_t>::max();
      if (question.among && !question.among(group.candidate)) continue;
      const auto& pairs = all_pairs[static_cast<size_t>(group.cluster - in.clusters.data())];
      stats.candidates += pairs.size();
      const Capacity capacity = CapacityFor(group, question);
      for (size_t i = 0; i < pairs.size(); ++i) {
        const ComputeBound& compute = ComputeOf(group, pairs[i].micro_batch);
        const MemoryBound memory = Bounds::Memory(group.bound, compute);
        const MemoryTotals needs = Needs(group, pairs[i].micro_batch, memory);
        if (!brute_force && !Fits(needs, capacity)) {  // nor does any larger micro-batch
          stats.cut_by_memory += pairs.size() - i;
          break;
        }
        const double seconds = Bounds::StepSeconds(group.bound, compute, pairs[i].grad_accum);
        // Bounds and programs add the same numbers up in another order.
        constexpr double kRounding = 1 + 1e-9;
        const double rate = kRounding * Tokens(group.candidate, pairs[i]) / seconds;
        items.push_back({MakeScore(question.objective, group.candidate, rate,
                                   static_cast<double>(memory.gpu_bytes)),
                         g, pairs[i]});
      }
    }
    return items;
  }

  // What a question has come to.
  struct Progress {
    std::optional<Found> best;
    Score score;
    int tried = 0;
    uint64_t instructions = 0;
    bool proven = true;
    bool gave_up = false;  // nothing that fits was found in time
    double gap = 0;
  };

  // Judges candidates by falling bound until none left can win. With `winner`, gives up after
  // kLoserBudget candidates where none left can beat it.
  void Judge(std::vector<Item> heap, const Question& question, bool brute_force,
             const Score* winner, Progress& run) {
    while (!heap.empty()) {
      const Score& next = heap.front().score;
      if (!brute_force && run.best && !(run.score < next)) {
        stats.cut_by_score += heap.size();
        return;
      }
      const bool hopeless = winner != nullptr && run.tried >= kLoserBudget && next < *winner;
      const bool spent = !brute_force && run.instructions > question.instruction_budget;
      // While nothing fits there is nothing to hand out: look longer.
      const bool lost =
          !brute_force && !run.best && run.instructions > 4 * question.instruction_budget;
      if (lost) {
        stats.left += heap.size();
        run.gave_up = true;
        return;
      }
      if (run.best && (hopeless || spent)) {
        stats.left += heap.size();
        run.proven = false;
        run.gap = std::max(run.gap, GapOf(run.score, next));
        return;
      }
      std::pop_heap(heap.begin(), heap.end());
      const Item item = heap.back();
      heap.pop_back();
      Group& group = groups[item.group];
      if (!brute_force && item.batch.micro_batch >= group.too_large) {
        ++stats.cut_by_memory;
        continue;
      }
      ++stats.judged;
      ++run.tried;
      Candidate candidate = group.candidate;
      candidate.micro_batch = item.batch.micro_batch;
      candidate.grad_accum = item.batch.grad_accum;
      const Judged& outcome = JudgedOf(item.group, candidate, &run.instructions);
      const Capacity capacity = CapacityFor(group, question);
      if (!Fits(Needs(group, candidate.micro_batch, outcome.live), capacity)) {
        group.too_large = std::min(group.too_large, candidate.micro_batch);
        continue;
      }
      if (!Fits(Needs(group, candidate.micro_batch, outcome.totals), capacity)) continue;
      const double seconds = outcome.parts.Of(candidate.grad_accum).total_seconds;
      const double rate = Tokens(candidate, item.batch) / seconds;
      const Found found{candidate, rate, seconds, outcome.totals.gpu_bytes};
      const Score score = ScoreOf(question.objective, found);
      if (run.best && !(run.score < score)) continue;
      run.score = score;
      run.best = found;
    }
  }

  // Choices without offload first: where they fit, few of the many others can still win.
  Progress Answer(const Question& question, bool brute_force, const Score* winner = nullptr) {
    std::vector<Item> here, away;
    for (Item& item : Open(question, brute_force)) {
      (Offloads(groups[item.group].candidate) ? away : here).push_back(item);
    }
    std::make_heap(here.begin(), here.end());
    std::make_heap(away.begin(), away.end());
    Progress run;
    Judge(std::move(here), question, brute_force, winner, run);
    Judge(std::move(away), question, brute_force, winner, run);
    if (run.best) run.gave_up = false;
    return run;
  }

  StageBest BestOfStage(int stage, const std::optional<Found>& winner, bool brute_force) {
    Question question;
    question.objective = in.objective;
    question.among = [stage](const Candidate& c) { return c.stage == stage; };
    StageBest best;
    best.stage = stage;
    std::optional<Candidate> shown;
    const Score to_beat = winner ? ScoreOf(in.objective, *winner) : Score{};
    if (winner && winner->candidate.stage == stage) {
      shown = best.candidate = winner->candidate;
    } else {
      const Progress run =
          Answer(question, brute_force, winner && !brute_force ? &to_beat : nullptr);
      best.proven = run.proven;
      if (run.best) best.candidate = run.best->candidate;
      shown = run.best ? best.candidate : Closest(question);
    }
    if (shown) best.estimate = Estimate(*shown);
    return best;
  }

  // The candidate that comes closest to fitting.
  std::optional<Candidate> Closest(const Question& question) {
    std::optional<Candidate> closest;
    double least = std::numeric_limits<double>::infinity();
    const std::vector<std::vector<BatchPair>> all_pairs = Pairs(question);
    for (const Group& group : groups) {
      const auto& pairs = all_pairs[static_cast<size_t>(group.cluster - in.clusters.data())];
      if (pairs.empty() || (question.among && !question.among(group.candidate))) continue;
      const int64_t micro_batch = pairs.front().micro_batch;
      const double excess = Excess(Needs(group, micro_batch, BoundOf(group, micro_batch)),
                                   CapacityFor(group, question));
      if (excess >= least) continue;
      least = excess;
      closest = group.candidate;
      closest->micro_batch = pairs.front().micro_batch;
      closest->grad_accum = pairs.front().grad_accum;
    }
    return closest;
  }

  const Judged& JudgedOf(uint32_t index, Candidate candidate, uint64_t* instructions) {
    // From three micro-steps on the program is the same.
    candidate.grad_accum = std::min<int64_t>(candidate.grad_accum, 3);
    const auto [entry, fresh] =
        judged.try_emplace({index, candidate.micro_batch, candidate.grad_accum});
    if (!fresh) return entry->second;
    ++stats.lowered;
    const SearchCluster& at = *groups[index].cluster;
    const Program program = LowerIt(candidate);
    for (const auto& section : program.sections) {
      *instructions += section.size();
      instructions_lowered += section.size();
    }
    Judged& result = entry->second;
    result.totals = TotalsOf(program.arena_bytes, at.cluster);
    std::array<uint64_t, kSpaces> live = program.arena_bytes;
    constexpr auto kDevice = static_cast<size_t>(Space::kDevice);
    live[kDevice] = program.live_peak_bytes[kDevice];
    result.live = TotalsOf(live, at.cluster);
    result.parts = StepTimer(*at.costs).Play(program);
    return result;
  }

  Program LowerIt(const Candidate& candidate) const {
    return Lower(in.model, tensors, SetupOf(candidate, in.base), in.lower);
  }

  ChoiceEstimate Estimate(const Candidate& candidate) const {
    const SearchCluster& at = ClusterOf(candidate);
    return EstimateProgram(LowerIt(candidate), at.cluster, at.costs);
  }

  SearchResult Run(bool brute_force) {
    stats = {};
    const auto start = std::chrono::steady_clock::now();
    SearchResult result;
    Question all;
    all.objective = in.objective;
    const Progress run = Answer(all, brute_force);
    const std::optional<Found>& winner = run.best;
    result.gap = run.gap;
    result.gave_up = run.gave_up;
    const SearchStats of_all = stats;
    for (int stage : in.space.stages) {
      if (winner && winner->candidate.stage == stage) result.best = result.stages.size();
      result.stages.push_back(BestOfStage(stage, winner, brute_force));
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    result.stats = of_all;
    result.stats.lowered = stats.lowered;
    result.stats.seconds = seconds.count();
    return result;
  }

  const SearchInputs in;
  const std::shared_ptr<const std::vector<ParamTensor>> tensors;
  Bounds bounds;
  std::vector<Group> groups;
  std::map<std::tuple<uint32_t, int64_t, int64_t>, Judged> judged;
  SearchStats stats;
  uint64_t instructions_lowered = 0;
};

ExtraMemory ExtraMemoryOf(const SearchInputs& inputs, const TrainSetup& setup) {
  return inputs.extra_memory ? inputs.extra_memory(setup) : ExtraMemory{};
}

uint64_t GpuBytesNeeded(const SearchInputs& inputs, const Found& found) {
  const TrainSetup setup = SetupOf(found.candidate, inputs.base);
  const auto at =
      std::find(inputs.space.gpus.begin(), inputs.space.gpus.end(), setup.batch.world_size);
  ZEROPLAN_CHECK(at != inputs.space.gpus.end());
  const auto index = static_cast<size_t>(at - inputs.space.gpus.begin());
  return found.gpu_bytes + ExtraMemoryOf(inputs, setup).Of(found.candidate.micro_batch) +
         inputs.clusters[index].cluster.gpu_reserve_bytes;
}

Searcher::Searcher(SearchInputs inputs) : impl_(std::make_unique<Impl>(std::move(inputs))) {}
Searcher::~Searcher() = default;

SearchResult Searcher::Run() { return impl_->Run(false); }
std::optional<Found> Searcher::Best(const Question& question, bool* gave_up) {
  const Impl::Progress run = impl_->Answer(question, false);
  if (gave_up != nullptr) *gave_up = run.gave_up;
  return run.best;
}
Program Searcher::LowerCandidate(const Candidate& candidate) const {
  return impl_->LowerIt(candidate);
}
ChoiceEstimate Searcher::EstimateCandidate(const Candidate& candidate) const {
  return impl_->Estimate(candidate);
}
const SearchInputs& Searcher::inputs() const { return impl_->in; }
uint64_t Searcher::instructions_lowered() const { return impl_->instructions_lowered; }
const SearchCluster& Searcher::ClusterOf(const Candidate& candidate) const {
  return impl_->ClusterOf(candidate);
}

std::string_view ObjectiveName(Objective objective) {
  switch (objective) {
    case Objective::kThroughput:
      return "throughput";
    case Objective::kHeadroom:
      return "headroom";
    case Objective::kFewestGpus:
      return "fewest-gpus";
  }
  return "?";
}

SearchResult Search(const SearchInputs& inputs) { return Searcher(inputs).Run(); }

SearchResult SearchByBruteForce(const SearchInputs& inputs) {
  return Searcher(inputs).impl_->Run(true);
}

std::vector<CutCandidate> CutByMemory(const SearchInputs& inputs, size_t limit) {
  Searcher searcher(inputs);
  Searcher::Impl& search = *searcher.impl_;
  std::vector<CutCandidate> all;
  const std::vector<std::vector<BatchPair>> pairs = search.Pairs({});
  for (Group& group : search.groups) {
    for (const BatchPair& batch :
         pairs[static_cast<size_t>(group.cluster - search.in.clusters.data())]) {
      const MemoryBound bound = search.BoundOf(group, batch.micro_batch);
      if (Fits(Searcher::Impl::Needs(group, batch.micro_batch, bound),
               Searcher::Impl::CapacityFor(group, {}))) {
        continue;
      }
      Candidate candidate = group.candidate;
      candidate.micro_batch = batch.micro_batch;
      candidate.grad_accum = batch.grad_accum;
      all.push_back({candidate, bound});
    }
  }
  if (all.size() <= limit) return all;
  std::vector<CutCandidate> some;
  for (size_t i = 0; i < limit; ++i) some.push_back(all[i * all.size() / limit]);
  return some;
}

}  // namespace zeroplan
