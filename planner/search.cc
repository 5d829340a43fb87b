#include "planner/search.h"

#include <algorithm>
#include <chrono>
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

Score MakeScore(Objective objective, double tokens_per_second, double gpu_bytes, int gpus) {
  switch (objective) {
    case Objective::kThroughput:
      return {tokens_per_second, -gpu_bytes};
    case Objective::kHeadroom:
      return {-gpu_bytes, tokens_per_second};
    case Objective::kFewestGpus:
      return {-static_cast<double>(gpus), tokens_per_second};
  }
  return {};
}

// What a program says of a choice, for any accumulation of its kind.
struct Judged {
  uint64_t gpu_bytes = 0, host_bytes = 0, nvme_bytes = 0;
  uint64_t live_gpu_bytes = 0;  // without placement's gaps; never falls as the micro-batch grows
  StepParts parts;
};

struct Group {
  Candidate candidate;  // batch 1 x 1
  const SearchCluster* cluster = nullptr;
  GroupBound bound;
  double memory_factor = 1;
  int64_t too_large = std::numeric_limits<int64_t>::max();  // micro-batch whose live bytes do not fit
};

struct Item {
  Score score;
  uint32_t group = 0;
  BatchPair batch{};

  bool operator<(const Item& other) const { return score < other.score; }
};

class Searcher {
 public:
  explicit Searcher(const SearchInputs& inputs)
      : in_(inputs),
        tensors_(std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(inputs.model))),
        bounds_(inputs.model, tensors_, inputs.base, inputs.lower) {
    ZEROPLAN_CHECK(in_.clusters.size() == in_.space.gpus.size());
    for (int gpus : in_.space.gpus) pairs_.push_back(BatchPairs(in_.space, gpus));
    for (const Candidate& candidate : Groups(in_.space)) AddGroup(candidate);
  }

  SearchResult Run(bool brute_force) {
    const auto start = std::chrono::steady_clock::now();
    SearchResult result;
    for (int stage : in_.space.stages) result.stages.push_back(BestOfStage(stage, brute_force));
    Score best;
    for (size_t s = 0; s < result.stages.size(); ++s) {
      if (!result.stages[s].candidate) continue;
      const ChoiceEstimate& estimate = result.stages[s].estimate;
      const Score score = MakeScore(in_.objective, *estimate.time.tokens_per_second,
                                    static_cast<double>(estimate.gpu_total_bytes),
                                    estimate.setup.batch.world_size);
      if (!result.best || best < score) {
        best = score;
        result.best = s;
      }
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    stats_.seconds = seconds.count();
    result.stats = stats_;
    return result;
  }

  std::vector<CutCandidate> Cut(size_t limit) {
    std::vector<CutCandidate> all;
    for (Group& group : groups_) {
      for (const BatchPair& batch : PairsOf(group)) {
        const MemoryBound bound = BoundOf(group, batch.micro_batch);
        if (Fits(group, bound)) continue;
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

 private:
  void AddGroup(const Candidate& candidate) {
    const auto at = std::find(in_.space.gpus.begin(), in_.space.gpus.end(), candidate.gpus);
    Group group;
    group.candidate = candidate;
    group.cluster = &in_.clusters[static_cast<size_t>(at - in_.space.gpus.begin())];
    const TrainSetup setup = SetupOf(candidate, in_.base);
    if (in_.excluded && in_.excluded(setup)) return;
    if (in_.memory_factor) group.memory_factor = in_.memory_factor(setup);
    group.bound = bounds_.Group(candidate, group.cluster->cluster, *group.cluster->costs);
    groups_.push_back(std::move(group));
  }

  const std::vector<BatchPair>& PairsOf(const Group& group) const {
    return pairs_[static_cast<size_t>(group.cluster - in_.clusters.data())];
  }

  MemoryBound BoundOf(const Group& group, int64_t micro_batch) {
    MemoryBound bound = group.bound.memory;
    bound.gpu_bytes += ComputeOf(group, micro_batch).transient_bytes;
    return bound;
  }

  const ComputeBound& ComputeOf(const Group& group, int64_t micro_batch) {
    return bounds_.Compute(micro_batch, group.candidate.recompute_every, *group.cluster->costs);
  }

  bool Fits(const Group& group, const MemoryBound& bytes) const {
    const Cluster& cluster = group.cluster->cluster;
    return static_cast<double>(bytes.gpu_bytes) * group.memory_factor <=
               static_cast<double>(cluster.gpu_capacity_bytes) &&
           (!cluster.host_capacity_bytes || bytes.host_bytes <= *cluster.host_capacity_bytes) &&
           (!cluster.nvme_capacity_bytes || bytes.nvme_bytes <= *cluster.nvme_capacity_bytes);
  }

  double Tokens(const Candidate& c, const BatchPair& batch) const {
    return static_cast<double>(batch.micro_batch) * static_cast<double>(batch.grad_accum) *
           c.gpus * static_cast<double>(in_.base.batch.seq_len);
  }

  // The stage's candidates that may fit, as a heap by score bound.
  std::vector<Item> Open(int stage, bool brute_force) {
    std::vector<Item> items;
    for (uint32_t g = 0; g < groups_.size(); ++g) {
      Group& group = groups_[g];
      if (group.candidate.stage != stage) continue;
      const std::vector<BatchPair>& pairs = PairsOf(group);
      stats_.candidates += pairs.size();
      for (size_t i = 0; i < pairs.size(); ++i) {
        const MemoryBound memory = BoundOf(group, pairs[i].micro_batch);
        if (!brute_force && !Fits(group, memory)) {  // nor does any larger micro-batch
          stats_.cut_by_memory += pairs.size() - i;
          break;
        }
        const double seconds = Bounds::StepSeconds(
            group.bound, ComputeOf(group, pairs[i].micro_batch), pairs[i].grad_accum);
        // Bounds and programs add the same numbers up in another order.
        constexpr double kRounding = 1 + 1e-9;
        const double rate = kRounding * Tokens(group.candidate, pairs[i]) / seconds;
        items.push_back({MakeScore(in_.objective, rate, static_cast<double>(memory.gpu_bytes),
                                   group.candidate.gpus),
                         g, pairs[i]});
      }
    }
    std::make_heap(items.begin(), items.end());
    return items;
  }

  StageBest BestOfStage(int stage, bool brute_force) {
    StageBest best;
    best.stage = stage;
    Score best_score;
    std::vector<Item> heap = Open(stage, brute_force);
    while (!heap.empty()) {
      if (!brute_force && best.candidate && !(best_score < heap.front().score)) {
        stats_.cut_by_score += heap.size();
        break;
      }
      std::pop_heap(heap.begin(), heap.end());
      const Item item = heap.back();
      heap.pop_back();
      Group& group = groups_[item.group];
      if (!brute_force && item.batch.micro_batch >= group.too_large) {
        ++stats_.cut_by_memory;
        continue;
      }
      Candidate candidate = group.candidate;
      candidate.micro_batch = item.batch.micro_batch;
      candidate.grad_accum = item.batch.grad_accum;
      const Judged& judged = Judge(item.group, candidate);
      ++stats_.judged;
      if (!Fits(group, {judged.live_gpu_bytes, judged.host_bytes, judged.nvme_bytes})) {
        group.too_large = std::min(group.too_large, candidate.micro_batch);
        continue;
      }
      if (!Fits(group, {judged.gpu_bytes, judged.host_bytes, judged.nvme_bytes})) continue;
      const double seconds = judged.parts.Of(candidate.grad_accum).total_seconds;
      const Score score =
          MakeScore(in_.objective, Tokens(candidate, item.batch) / seconds,
                    static_cast<double>(judged.gpu_bytes), candidate.gpus);
      if (best.candidate && !(best_score < score)) continue;
      best_score = score;
      best.candidate = candidate;
    }
    Report(stage, best);
    return best;
  }

  // The exact program of the best choice, or of the one that comes closest to fitting.
  void Report(int stage, StageBest& best) {
    std::optional<Candidate> shown = best.candidate;
    const Group* of = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (Group& group : groups_) {
      if (group.candidate.stage != stage) continue;
      if (best.candidate) {
        if (group.candidate.gpus == best.candidate->gpus) of = &group;
        continue;
      }
      const std::vector<BatchPair>& pairs = PairsOf(group);
      if (pairs.empty()) continue;
      const MemoryBound bound = BoundOf(group, pairs.front().micro_batch);
      const double excess = Excess(group, bound);
      if (excess >= least) continue;
      least = excess;
      of = &group;
      shown = group.candidate;
      shown->micro_batch = pairs.front().micro_batch;
      shown->grad_accum = pairs.front().grad_accum;
    }
    if (of == nullptr) return;
    const TrainSetup setup = SetupOf(*shown, in_.base);
    ++stats_.lowered;
    best.estimate = EstimateProgram(Lower(in_.model, tensors_, setup, in_.lower),
                                    of->cluster->cluster, of->cluster->costs);
  }

  // By how much the scarcest memory is exceeded, as a factor.
  double Excess(const Group& group, const MemoryBound& bytes) const {
    const Cluster& cluster = group.cluster->cluster;
    auto over = [](uint64_t need, uint64_t has) {
      return static_cast<double>(need) / static_cast<double>(std::max<uint64_t>(has, 1));
    };
    double excess = over(bytes.gpu_bytes, cluster.gpu_capacity_bytes) * group.memory_factor;
    if (cluster.host_capacity_bytes) {
      excess = std::max(excess, over(bytes.host_bytes, *cluster.host_capacity_bytes));
    }
    if (cluster.nvme_capacity_bytes) {
      excess = std::max(excess, over(bytes.nvme_bytes, *cluster.nvme_capacity_bytes));
    }
    return excess;
  }

  const Judged& Judge(uint32_t index, Candidate candidate) {
    // From three micro-steps on the program is the same.
    candidate.grad_accum = std::min<int64_t>(candidate.grad_accum, 3);
    const auto [entry, fresh] =
        judged_.try_emplace({index, candidate.micro_batch, candidate.grad_accum});
    if (!fresh) return entry->second;
    ++stats_.lowered;
    const SearchCluster& at = *groups_[index].cluster;
    const Program program = Lower(in_.model, tensors_, SetupOf(candidate, in_.base), in_.lower);
    auto bytes = [&](Space space) { return program.arena_bytes[static_cast<size_t>(space)]; };
    const auto ranks = static_cast<uint64_t>(at.cluster.ranks_per_node());
    Judged& judged = entry->second;
    judged.gpu_bytes = bytes(Space::kDevice) + at.cluster.runtime_bytes;
    judged.live_gpu_bytes = program.live_peak_bytes[static_cast<size_t>(Space::kDevice)] +
                            at.cluster.runtime_bytes;
    judged.host_bytes = ranks * (bytes(Space::kPinned) + bytes(Space::kPageable));
    judged.nvme_bytes = ranks * bytes(Space::kFile);
    judged.parts = StepTimer(*at.costs).Play(program);
    return judged;
  }

  const SearchInputs& in_;
  std::shared_ptr<const std::vector<ParamTensor>> tensors_;
  Bounds bounds_;
  std::vector<std::vector<BatchPair>> pairs_;  // by position in space.gpus
  std::vector<Group> groups_;
  std::map<std::tuple<uint32_t, int64_t, int64_t>, Judged> judged_;
  SearchStats stats_;
};

}  // namespace

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

SearchResult Search(const SearchInputs& inputs) { return Searcher(inputs).Run(false); }

SearchResult SearchByBruteForce(const SearchInputs& inputs) { return Searcher(inputs).Run(true); }

std::vector<CutCandidate> CutByMemory(const SearchInputs& inputs, size_t limit) {
  return Searcher(inputs).Cut(limit);
}

}  // namespace zeroplan
