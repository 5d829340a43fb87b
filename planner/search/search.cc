#include "planner/search/search.h"

#include <algorithm>
#include <chrono>

#include "core/base/error.h"
#include "planner/search/judge.h"
#include "planner/search/memory_sweep.h"

namespace zeroplan {

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
      const Answer answer =
          brute_force ? RunHuntByBruteForce(judge, question).answer : Best(question);
      best.proven = answer.gap == 0;
      if (answer.found) best.candidate = answer.found->candidate;
      shown = answer.found ? best.candidate : judge.Closest(question);
    }
    if (shown) best.estimate = judge.Estimate(*shown);
    return best;
  }

  Answer Best(const Question& question) {
    return Refined(question, RunHunt(judge, question).answer);
  }
  Answer Refined(const Question& question, const Answer& answer) {
    return Tuned(question, WithoutMixes(question, answer));
  }

  // The answer in a part of the space if that is better than `answer` by more than a tie; else
  // none.
  std::optional<Answer> Better(SearchInputs part, const Question& question, const Answer& answer) {
    Judge narrow(std::move(part), judge.programs());
    narrow.TakeCompute(judge);
    const Answer found = RunHunt(narrow, question).answer;
    judge.stats.lowered += narrow.stats.lowered;
    judge.stats.instructions += narrow.stats.instructions;
    if (!found.found || Merit(*found.found) <= Merit(*answer.found) * (1 + kTieMargin)) {
      return std::nullopt;
    }
    return found;
  }

  // Mixes share the budget with all else. Searches the space of none, selective and full recompute
  // too if the answer is far from proven.
  Answer WithoutMixes(const Question& question, Answer answer) {
    constexpr double kFar = 0.1;
    if (!answer.found || answer.gap < kFar || question.any || in().space.mixes.empty()) {
      return answer;
    }
    SearchInputs inputs = in();
    inputs.space.mixes.clear();
    if (inputs.space.recompute.size() > 1) {
      std::erase(inputs.space.recompute, kProductsRecompute);
    }
    if (const std::optional<Answer> found = Better(std::move(inputs), question, answer)) {
      const double limit = (1 + answer.gap) * Merit(*answer.found);
      answer.found = found->found;
      answer.gap = std::max(found->gap, limit / Merit(*found->found) - 1);
    }
    return answer;
  }

  // Searches the shard groups of the answer as groups that the user set: other groups combine with
  // few buckets and gathers only (SearchSpace::groupings).
  Answer Tuned(const Question& question, Answer answer) {
    if (!answer.found || question.objective == Objective::kHeadroom || question.any) return answer;
    const Candidate& now = answer.found->candidate;
    if (now.grouping.ranks == 0 || in().space.grouping_fixed) return answer;
    SearchInputs inputs = in();
    inputs.clusters = {judge.ClusterOf(now)};
    SearchSpace& tuned = inputs.space;
    tuned.gpus = {now.gpus};
    tuned.sequence_ranks = {now.sequence_ranks};
    tuned.groupings = {now.grouping};
    tuned.grouping_fixed = true;
    Question among = question;
    among.first = {now};
    among.instruction_budget = kInstructionBudget / 8;
    if (const std::optional<Answer> found = Better(std::move(inputs), among, answer)) {
      answer.found = found->found;
    }
    return answer;
  }

  SearchResult Run(bool brute_force) {
    const auto start = std::chrono::steady_clock::now();
    const JudgeStats before = judge.stats;
    SearchResult result;
    Question all;
    all.objective = in().objective;
    const Hunted hunted = brute_force ? RunHuntByBruteForce(judge, all) : RunHunt(judge, all);
    Answer answer = brute_force ? hunted.answer : Refined(all, hunted.answer);
    const JudgeStats after = judge.stats;
    result.stats = {after.candidates - before.candidates,
                    after.cut_by_memory - before.cut_by_memory,
                    after.cut_by_score - before.cut_by_score,
                    after.judged - before.judged,
                    hunted.left,
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
      answer = Tuned(again, RunHunt(judge, again).answer);
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
Answer Searcher::Best(const Question& question) { return impl_->Best(question); }
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
  if (inputs().objective != Objective::kThroughput || inputs().space.gpus.size() > 1 ||
      !inputs().space.mixes.empty()) {
    return AnswersAtMemories(*this, now, most);
  }
  return SweepMemory(impl_->judge, now, most);
}
uint64_t Searcher::instructions_lowered() const { return impl_->judge.stats.instructions; }
double Searcher::MostOfKernels(const Candidate& candidate) const {
  return impl_->judge.MostOfKernels(candidate);
}
bool Searcher::MayReach(const Question& question, double merit) {
  constexpr double kLeast = -std::numeric_limits<double>::infinity();
  const std::vector<Item> open = impl_->judge.Open(question, /*cut=*/true);
  return std::any_of(open.begin(), open.end(),
                     [merit](const Item& item) { return item.bound.primary >= merit; }) ||
         !impl_->judge.OpenMixes(question, /*cut=*/true, {merit, kLeast}, /*each=*/false).empty();
}
std::unique_ptr<ChoiceSearch> Searcher::Like(SearchInputs inputs, bool same_gpus) const {
  auto search = std::make_unique<Searcher>(std::move(inputs), *this);
  if (same_gpus) search->impl_->judge.TakeCompute(impl_->judge);
  return search;
}
Answer Searcher::BestAtBandwidth(const Found& now, const OtherLink& link, double rate,
                                 Budget budget) {
  SearchInputs other = inputs();
  SearchCluster at = ClusterOf(now.candidate);
  const CostModel costs(link.Profile(rate), at.cluster.shape());
  at.costs = &costs;
  other.space.gpus = {now.candidate.gpus};
  other.clusters = {at};
  other.progress = {};
  Question question;
  question.objective = other.objective;
  question.instruction_budget = kInstructionBudget / (other.space.groupings.size() > 1 ? 5 : 10);
  question.first = {now.candidate};
  Searcher search(std::move(other), *this);
  search.impl_->judge.TakeCompute(impl_->judge);
  if (budget == Budget::kPart) return search.Best(question);
  const SearchResult result = search.Run();
  Answer answer{std::nullopt, result.gap, result.gave_up};
  if (result.best) answer.found = FoundOf(result.stages[*result.best], *inputs().runtime);
  return answer;
}
uint64_t Searcher::GpuBytesNeeded(const Found& found) const {
  const TrainSetup setup = SetupOf(found.candidate, inputs().base);
  return found.gpu_bytes + ExtraMemoryOf(inputs(), setup).Of(found.candidate.micro_batch) +
         ClusterOf(found.candidate).cluster.gpu_reserve_bytes;
}

Found FoundOf(const StageBest& stage, const Runtime& runtime) {
  const TimeEstimate& time = stage.estimate.time;
  return {*stage.candidate, *time.tokens_per_second, *time.total_seconds,
          stage.estimate.footprint.gpu_total(), runtime.Merit(stage.estimate)};
}

SearchResult Search(const SearchInputs& inputs) { return Searcher(inputs).Run(); }

SearchResult SearchByBruteForce(const SearchInputs& inputs) {
  return Searcher(inputs).impl_->Run(true);
}

std::vector<CutCandidate> CutByMemory(const SearchInputs& inputs, size_t limit) {
  return Searcher(inputs).impl_->judge.CutByMemory(limit);
}

}  // namespace zeroplan
