#include "planner/search/enumerated_search.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <tuple>

#include "core/base/error.h"
#include "planner/estimate/choices.h"

namespace zeroplan {
namespace {

// Micro-steps beyond so many are like the one before.
constexpr int64_t kMicroSteps = 3;
// Bounds on times are of a step of many micro-steps, where rounding is all that they can miss.
constexpr double kTimeSlack = 1e-4;
// What one played step counts as, beside a lowered program.
constexpr uint64_t kInstructionsOfPlay = 20'000;

// What a family of choices shares: all but batch and bucket. The number of micro-steps counts as
// far as memory tells them apart.
using Family = std::tuple<int, OffloadDevice, double, OffloadDevice, RecomputeConfig, bool, bool,
                          int64_t, Grouping, StatesKind, int>;
Family FamilyOf(const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  return {zero.stage,
          zero.offload_optimizer.device,
          zero.offload_optimizer.ratio,
          zero.offload_param.device,
          setup.recompute,
          zero.overlap_comm,
          PinsMemory(zero),
          std::min(setup.batch.grad_accum, kMicroSteps),
          {zero.shard_group, zero.across_stage},
          StatesOf(setup.precision),
          setup.batch.sequence_ranks};
}

double TokensOf(const TrainSetup& setup) {
  return static_cast<double>(setup.batch.global_batch()) * static_cast<double>(setup.batch.seq_len);
}

Found FoundOf(const ChoiceEstimate& choice, double merit) {
  return {CandidateOf(choice.setup), choice.time.tokens_per_second.value_or(0),
          choice.time.total_seconds.value_or(0), choice.footprint.gpu_total(), merit};
}

// One answer: choices of one number of GPUs, stage by stage.
class Sweep {
 public:
  struct Judged {
    ChoiceEstimate choice;
    double merit = 0;
  };

  Sweep(const SearchInputs& inputs, ChoiceJudge& judge, const Cluster& cluster, Objective objective)
      : inputs_(inputs), judge_(judge), cluster_(cluster), objective_(objective) {}

  // Judges until one fits: those first that take least memory of their kind, the last stage first.
  // False: given up after playing `most` steps.
  bool RunUntilFits(const std::vector<TrainSetup>& setups, uint64_t most) {
    std::map<int, std::map<Family, std::map<int64_t, Cell>>, std::greater<>> stages;
    for (const TrainSetup& setup : setups) {
      stages[setup.zero.stage][FamilyOf(setup)][setup.batch.micro_batch].setups.push_back(&setup);
    }
    stats.candidates += setups.size();
    // With full recompute before others, and with all or nothing on the host before a part of it.
    const auto promise = [](const Family& family) {
      const OffloadDevice optimizer = std::get<1>(family), param = std::get<3>(family);
      const bool whole =
          std::get<2>(family) >= 1 &&
          (optimizer == param || (optimizer != OffloadDevice::kNone && std::get<0>(family) < 3));
      return (std::get<4>(family).kind == RecomputeKind::kFull ? 2 : 0) + (whole ? 1 : 0);
    };
    for (auto& [stage, families] : stages) {
      std::vector<std::map<int64_t, Cell>*> order;
      for (int wanted = 3; wanted >= 0; --wanted) {
        for (auto family = families.rbegin(); family != families.rend(); ++family) {
          if (promise(family->first) == wanted) order.push_back(&family->second);
        }
      }
      for (std::map<int64_t, Cell>* family : order) {
        Cell& cell = family->begin()->second;
        for (size_t i = cell.setups.size(); i-- > 0;) {
          if (stats.judged >= most) return false;
          const ChoiceEstimate& choice = Judge(cell, i).choice;
          if (choice.fits) return true;
          if (judge_.LargerMisfitToo(choice, cluster_)) break;
        }
      }
    }
    return true;
  }

  // A run looks for the best of every stage, for the best of all, or for both by judging every
  // choice.
  enum class Aim : uint8_t { kStages, kBest, kEverything };
  void Run(const std::vector<TrainSetup>& setups, Aim aim) {
    std::map<int, Families> stages;
    for (const TrainSetup& setup : setups) {
      const int stage = aim == Aim::kBest ? 0 : setup.zero.stage;
      Cell& cell = stages[stage][FamilyOf(setup)][setup.batch.micro_batch];
      cell.setups.push_back(&setup);
    }
    stats.candidates += setups.size();
    for (auto& [stage, families] : stages) {
      stages_[stage].first = judged_.size();
      if (objective_ == Objective::kHeadroom && aim != Aim::kEverything) {
        JudgeSmallest(families);
      } else if (aim == Aim::kEverything) {
        for (auto& [key, cells] : families) {
          for (auto& [micro_batch, cell] : cells) JudgeUntilAmple(cell);
        }
      } else {
        SearchFamilies(families, aim);
      }
      stages_[stage].second = judged_.size();
    }
  }

  const Judged* Best() const { return Pick(0, judged_.size()); }
  std::vector<StageBest> Stages() const {
    const Judged* best = Best();
    std::vector<StageBest> all;
    for (const auto& [stage, range] : stages_) {
      const bool has_best = best != nullptr && best->choice.setup.zero.stage == stage;
      const Judged* shown = has_best ? best : Pick(range.first, range.second);
      StageBest of;
      of.stage = stage;
      if (shown != nullptr) of.candidate = CandidateOf(shown->choice.setup);
      if (shown == nullptr) shown = Closest(range.first, range.second);
      if (shown != nullptr) of.estimate = shown->choice;
      all.push_back(std::move(of));
    }
    return all;
  }
  const std::deque<Judged>& judged() const { return judged_; }

  SearchStats stats;

 private:
  // Choices that differ in their buckets alone.
  struct Cell {
    std::vector<const TrainSetup*> setups;  // the preferred bucket first
    double most = 0;                        // no merit above this
    size_t judged = 0;
  };
  using Families = std::map<Family, std::map<int64_t, Cell>>;

  // A larger micro-batch takes no less memory.
  void JudgeSmallest(Families& families) {
    for (auto& [key, cells] : families) {
      Cell& cell = cells.begin()->second;
      for (size_t i = 0; i < cell.setups.size(); ++i) Judge(cell, i);
    }
  }

  void SearchFamilies(Families& families, Aim aim) {
    best_ = 0;
    // Among stages what may tie is judged too, because the simplest stage of a tie is taken.
    cut_below_ = aim == Aim::kBest ? 1 - kEnumeratedTieMargin : 1;
    std::vector<std::vector<Cell*>> sorted;
    for (auto& [key, cells] : families) {
      std::vector<Cell*>& family = sorted.emplace_back();
      for (auto& [micro_batch, cell] : cells) {
        family.push_back(&cell);
        const TrainSetup& setup = *cell.setups.front();
        const double seconds = judge_.LeastMicroStepSeconds(setup, cluster_) *
                               static_cast<double>(setup.batch.grad_accum);
        cell.most = MostMerit(setup, seconds > 0 ? TokensOf(setup) / seconds
                                                 : std::numeric_limits<double>::infinity());
      }
    }
    const auto most = [](const std::vector<Cell*>& family) {
      double value = 0;
      for (const Cell* cell : family) value = std::max(value, cell->most);
      return value;
    };
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const auto& a, const auto& b) { return most(a) > most(b); });
    for (std::vector<Cell*>& family : sorted) SearchFamily(family);
  }

  // The merit of a choice of at most that speed, but for the slack.
  double MostMerit(const TrainSetup& setup, double tokens_per_second) const {
    ChoiceEstimate choice;
    choice.setup = setup;
    choice.time.total_seconds = TokensOf(setup) / tokens_per_second;
    choice.time.tokens_per_second = tokens_per_second;
    choice.fits = true;
    choice.room = MemoryRoom::kAmple;
    return inputs_.runtime->Merit(choice) / (1 - kTimeSlack);
  }

  bool Hopeless(const Cell& cell) const { return cell.most <= best_ * cut_below_; }

  // `cells`: by rising micro-batch.
  void SearchFamily(std::vector<Cell*>& cells) {
    std::erase_if(cells, [this](const Cell* cell) {
      if (!Hopeless(*cell)) return false;
      stats.cut_by_score += cell->setups.size();
      return true;
    });
    CutTooLarge(cells);
    if (cells.empty()) return;
    // Smaller micro-batches are no faster than the largest, but for the slack.
    const Cell& largest = *cells.back();
    const Judged& judged = judged_[judged_at_.at(largest.setups.back())];
    for (Cell* cell : cells) {
      if (!judged.choice.time.tokens_per_second) break;
      cell->most = std::min(
          cell->most, MostMerit(*cell->setups.front(), *judged.choice.time.tokens_per_second));
    }
    std::stable_sort(cells.begin(), cells.end(),
                     [](const Cell* a, const Cell* b) { return a->most > b->most; });
    for (Cell* cell : cells) {
      if (Hopeless(*cell)) {
        stats.cut_by_score += cell->setups.size() - cell->judged;
      } else {
        JudgeUntilAmple(*cell);
      }
    }
  }

  // Leaves out micro-batches of which even the smallest bucket does not fit.
  void CutTooLarge(std::vector<Cell*>& cells) {
    if (cells.empty()) return;
    size_t low = 0, high = cells.size();  // the first that is too large, if one is
    if (TooLarge(*cells.front())) high = 0;
    while (high - low > 1) {
      const size_t middle = low + (high - low) / 2;
      (TooLarge(*cells[middle]) ? high : low) = middle;
    }
    for (size_t i = high; i < cells.size(); ++i) {
      stats.cut_by_memory += cells[i]->setups.size() - cells[i]->judged;
    }
    cells.resize(high);
  }

  bool TooLarge(Cell& cell) {
    const ChoiceEstimate& choice = Judge(cell, cell.setups.size() - 1).choice;
    return !choice.fits && judge_.LargerMisfitToo(choice, cluster_);
  }

  // Smaller buckets than the preferred one are for where memory is short.
  void JudgeUntilAmple(Cell& cell) {
    for (size_t i = 0; i < cell.setups.size(); ++i) {
      if (Judge(cell, i).choice.room != MemoryRoom::kAmple) continue;
      stats.cut_by_score += cell.setups.size() - cell.judged;
      return;
    }
  }

  const Judged& Judge(Cell& cell, size_t bucket) {
    const TrainSetup& setup = *cell.setups[bucket];
    const auto [at, added] = judged_at_.try_emplace(&setup, judged_.size());
    if (!added) return judged_[at->second];
    ++cell.judged;
    ++stats.judged;
    Judged judged{judge_.Estimate(setup, cluster_), 0};
    if (inputs_.progress) inputs_.progress(judge_.played());
    ChoiceEstimate& choice = judged.choice;
    if (!choice.time.total_seconds && choice.fits) {
      choice.fits = false;
      choice.room = MemoryRoom::kNone;
      choice.why_not = "time: the hardware profile does not say how fast the host's memory is";
    }
    judged.merit = choice.fits ? inputs_.runtime->Merit(choice) : 0;
    best_ = std::max(best_, judged.merit);
    judged_.push_back(std::move(judged));
    return judged_.back();
  }

  // Of those judged from `first` to `end` that are as good as the best of them, as far as the model
  // tells, the simplest; for headroom what takes least. Null: none fits.
  const Judged* Pick(size_t first, size_t end) const {
    double merit = 0;
    for (size_t i = first; i < end; ++i) merit = std::max(merit, judged_[i].merit);
    const auto simpler = [this](const Judged& a, const Judged& b) {
      const auto of_a = inputs_.runtime->Complexity(a.choice.setup);
      const auto of_b = inputs_.runtime->Complexity(b.choice.setup);
      if (of_a != of_b) return of_a < of_b;
      if (a.merit != b.merit) return a.merit > b.merit;
      return a.choice.footprint.gpu_total() < b.choice.footprint.gpu_total();
    };
    const auto smaller = [](const Judged& a, const Judged& b) {
      const uint64_t of_a = a.choice.footprint.gpu_total(), of_b = b.choice.footprint.gpu_total();
      return of_a != of_b ? of_a < of_b : a.merit > b.merit;
    };
    const bool by_memory = objective_ == Objective::kHeadroom;
    const Judged* found = nullptr;
    for (size_t i = first; i < end; ++i) {
      const Judged& judged = judged_[i];
      if (!judged.choice.fits) continue;
      if (!by_memory && judged.merit < merit * (1 - kEnumeratedTieMargin)) continue;
      if (found == nullptr || (by_memory ? smaller(judged, *found) : simpler(judged, *found))) {
        found = &judged;
      }
    }
    return found;
  }

  // What exceeds the scarcest memory by least; of equals, to a thousandth, the smallest
  // micro-batch.
  const Judged* Closest(size_t first, size_t end) const {
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = first; i < end; ++i) least = std::min(least, ExcessOf(judged_[i].choice));
    const Judged* found = nullptr;
    for (size_t i = first; i < end; ++i) {
      if (ExcessOf(judged_[i].choice) > least * 1.001) continue;
      const auto micro_batch = [](const Judged& of) { return of.choice.setup.batch.micro_batch; };
      if (found == nullptr || micro_batch(judged_[i]) < micro_batch(*found)) found = &judged_[i];
    }
    return found;
  }

  // The factor by which the scarcest memory is exceeded, by the steps or by loading. Of PyTorch
  // tensors count: before it fails its allocator gives back what it keeps beside them.
  double ExcessOf(const ChoiceEstimate& choice) const {
    MemoryTotals needs = choice.footprint.totals();
    if (const std::optional<TorchFootprint>& torch = choice.footprint.torch) {
      needs.gpu_bytes = torch->TensorBytes() + torch->context_bytes;
      for (const AroundPeak& peak : torch->around) {
        if (peak.phase != AroundPhase::kLoading) continue;
        needs.gpu_bytes = std::max(needs.gpu_bytes, peak.bytes.gpu);
        needs.host_bytes =
            std::max(needs.host_bytes, peak.bytes.NodeHost(cluster_.ranks_per_node()));
      }
    }
    return Excess(needs, CapacityOf(cluster_));
  }

  const SearchInputs& inputs_;
  ChoiceJudge& judge_;
  const Cluster cluster_;
  const Objective objective_;
  double best_ = 0;       // merit, of what is searched
  double cut_below_ = 1;  // share of best_
  std::deque<Judged> judged_;
  std::map<const TrainSetup*, size_t> judged_at_;
  std::map<int, std::pair<size_t, size_t>> stages_;  // where each one's judged choices lie
};

}  // namespace

EnumeratedSearch::EnumeratedSearch(SearchInputs inputs)
    : EnumeratedSearch(std::move(inputs), nullptr) {}

EnumeratedSearch::EnumeratedSearch(SearchInputs inputs, std::shared_ptr<ChoiceJudge> judge)
    : inputs_(std::move(inputs)),
      judge_(judge != nullptr
                 ? std::move(judge)
                 : inputs_.runtime->Judge(
                       {inputs_.model, inputs_.lower, inputs_.recipe, inputs_.hardware, nullptr})) {
  ZEROPLAN_CHECK(inputs_.clusters.size() == inputs_.space.gpus.size());
  ZEROPLAN_CHECK(inputs_.hardware != nullptr);
  for (const SearchCluster& at : inputs_.clusters) {
    const std::string lacks = inputs_.runtime->TimeLacks(*inputs_.hardware, at.cluster.shape());
    if (lacks.empty()) continue;
    ThrowUsage(
        "⟦runtime⟧: the hardware profile {} has no {}, which the time of {} depends on; use a "
        "profile that has it ('zeroplan hw show {}')",
        inputs_.hardware->name, lacks, inputs_.runtime->name(), inputs_.hardware->name);
  }
}

std::vector<TrainSetup> EnumeratedSearch::ChoicesFor(const Question& question, int gpus) const {
  SearchSpace space = inputs_.space;
  space.gpus = {gpus};
  if (question.global_batch) {
    SetBatches(space, question.global_batch, inputs_.base.batch.seq_len);
    if (space.micro_batch_fixed) space.micro_batches = inputs_.space.micro_batches;
    if (space.grad_accum_fixed) space.grad_accums = inputs_.space.grad_accums;
  }
  if (!AnyBatch(space)) return {};
  std::vector<TrainSetup> setups = inputs_.runtime->Choices(inputs_, space);
  std::erase_if(setups, [&](const TrainSetup& setup) {
    Candidate group = CandidateOf(setup);
    group.micro_batch = group.grad_accum = 1;
    return (inputs_.excluded && inputs_.excluded(setup)) ||
           (question.among && !question.among(group));
  });
  return setups;
}

Cluster EnumeratedSearch::ClusterFor(const Question& question, int gpus) const {
  Candidate of;
  of.gpus = gpus;
  Cluster cluster = ClusterOf(of).cluster;
  if (question.gpu_capacity_bytes) cluster.gpu_capacity_bytes = *question.gpu_capacity_bytes;
  return cluster;
}

SearchResult EnumeratedSearch::Run(bool sweep) {
  const auto start = std::chrono::steady_clock::now();
  const uint64_t played = judge_->played();
  Question question;
  question.objective = inputs_.objective;
  SearchResult result;
  judged_.clear();
  // The fewest GPUs are tried first; only one number of them has choices otherwise.
  for (const int gpus : inputs_.space.gpus) {
    const std::vector<TrainSetup> setups = ChoicesFor(question, gpus);
    if (setups.empty()) continue;
    Sweep found(inputs_, *judge_, ClusterFor(question, gpus), inputs_.objective);
    found.Run(setups, sweep ? Sweep::Aim::kEverything : Sweep::Aim::kStages);
    for (const Sweep::Judged& judged : found.judged()) {
      estimates_.insert_or_assign(CandidateOf(judged.choice.setup), judged.choice);
      judged_.push_back(
          {FoundOf(judged.choice, judged.merit), judged.choice.fits, judged.choice.room});
    }
    result.stages = found.Stages();
    for (const auto& [sum, of] : {std::pair(&result.stats.candidates, found.stats.candidates),
                                  {&result.stats.cut_by_memory, found.stats.cut_by_memory},
                                  {&result.stats.cut_by_score, found.stats.cut_by_score},
                                  {&result.stats.judged, found.stats.judged}}) {
      *sum += of;
    }
    if (const Sweep::Judged* best = found.Best()) {
      best_ = FoundOf(best->choice, best->merit);
      for (size_t i = 0; i < result.stages.size(); ++i) {
        if (result.stages[i].stage == best->choice.setup.zero.stage) result.best = i;
      }
      break;
    }
  }
  result.stats.lowered = judge_->played() - played;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  result.stats.seconds = seconds.count();
  return result;
}

Answer EnumeratedSearch::Best(const Question& question) {
  Answer answer;
  for (const int gpus : inputs_.space.gpus) {
    const std::vector<TrainSetup> setups = ChoicesFor(question, gpus);
    if (setups.empty()) continue;
    Sweep found(inputs_, *judge_, ClusterFor(question, gpus), question.objective);
    if (question.any) {
      const double budget = inputs_.effort * static_cast<double>(question.instruction_budget);
      // That of a model of some fifty layers; of more layers it is longer.
      const double of_play = static_cast<double>(kInstructionsOfPlay) *
                             std::max(1.0, static_cast<double>(inputs_.model.layers) / 48);
      const auto most = static_cast<uint64_t>(budget / of_play);
      answer.gave_up = !found.RunUntilFits(setups, std::max<uint64_t>(1, most));
    } else {
      found.Run(setups, Sweep::Aim::kBest);
    }
    if (const Sweep::Judged* best = found.Best()) {
      estimates_.try_emplace(CandidateOf(best->choice.setup), best->choice);
      answer.found = FoundOf(best->choice, best->merit);
      break;
    }
  }
  return answer;
}

ChoiceEstimate EnumeratedSearch::EstimateCandidate(const Candidate& candidate) const {
  const auto at = estimates_.find(candidate);
  ZEROPLAN_CHECK(at != estimates_.end(), "a choice that no answer had");
  return at->second;
}

std::unique_ptr<ChoiceSearch> EnumeratedSearch::Like(SearchInputs inputs,
                                                     bool /*same_gpus*/) const {
  const bool judged_alike = inputs.hardware == inputs_.hardware && inputs.base == inputs_.base &&
                            inputs.recipe == inputs_.recipe &&
                            inputs.given_zero == inputs_.given_zero;
  return std::unique_ptr<ChoiceSearch>(
      new EnumeratedSearch(std::move(inputs), judged_alike ? judge_ : nullptr));
}

double EnumeratedSearch::MostOfKernels(const Candidate& candidate) const {
  const TrainSetup setup = SetupOf(candidate, inputs_.base);
  const JudgeInputs judged = {inputs_.model, inputs_.lower, inputs_.recipe, inputs_.hardware};
  if (!inputs_.runtime->Takes(judged, setup)) return std::numeric_limits<double>::infinity();
  const double seconds =
      judge_->LeastMicroStepSeconds(setup, ClusterFor({}, candidate.gpus)) * (1 - kTimeSlack);
  const auto tokens = static_cast<double>(setup.batch.micro_batch * setup.batch.seq_len);
  return seconds > 0 ? tokens / setup.batch.sequence_ranks / seconds
                     : std::numeric_limits<double>::infinity();
}

Answer EnumeratedSearch::BestAtBandwidth(const Found& now, const OtherLink& link, double rate,
                                         Budget /*budget*/) {  // always a plan's
  const HardwareProfile profile = link.Profile(rate);
  SearchInputs other = inputs_;
  other.hardware = &profile;
  other.clusters = {ClusterOf(now.candidate)};
  other.space.gpus = {now.candidate.gpus};
  other.progress = nullptr;
  Question question;
  question.objective = other.objective;
  return EnumeratedSearch(std::move(other)).Best(question);
}

uint64_t EnumeratedSearch::GpuBytesNeeded(const Found& found) const {
  return found.gpu_bytes + ClusterOf(found.candidate).cluster.gpu_reserve_bytes;
}

uint64_t EnumeratedSearch::instructions_lowered() const {
  return judge_->played() * kInstructionsOfPlay;
}

}  // namespace zeroplan
