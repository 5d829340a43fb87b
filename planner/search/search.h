// The best choice of a space. Of zeroplan's own executor: candidates whose memory bound does not
// fit, or whose score bound does not beat what is known, are cut; the others are lowered and judged
// by their program: first the most promising of every kind, then what is near the best of these,
// then whatever could still be better. Nothing is reported that was not lowered.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "cost_models/step_time.h"
#include "hwprofiles/profile.h"
#include "planner/estimate/estimate.h"
#include "planner/search/bounds.h"
#include "planner/search/lowered_programs.h"

namespace zeroplan {

enum class Objective : uint8_t {
  kThroughput,  // tokens per second (see Merit); then less GPU memory
  kHeadroom,    // GPU memory left; then tokens per second
  kFewestGpus,  // GPUs; then tokens per second
};
std::string_view ObjectiveName(Objective objective);  // "throughput", "headroom", "fewest-gpus"

// The machines of one number of GPUs. `costs` must outlive the search.
struct SearchCluster {
  Cluster cluster;
  const CostModel* costs = nullptr;
};

// Memory of one GPU.
struct ExtraMemory {
  uint64_t fixed_bytes = 0;
  uint64_t bytes_per_sequence = 0;  // of the micro-batch

  uint64_t Of(int64_t micro_batch) const {
    return fixed_bytes + static_cast<uint64_t>(micro_batch) * bytes_per_sequence;
  }
};

struct SearchInputs {
  const Runtime* runtime = &OwnExecutor();
  ModelSpec model;
  TrainSetup base;  // what the space leaves open: sequence length, precision, optimizer
  SearchSpace space;
  std::vector<SearchCluster> clusters;  // one for each of space.gpus, in that order
  LowerOptions lower;                   // of programs
  TorchRecipe recipe;
  // Of other runtimes than zeroplan's: the clusters' profile, which must outlive the search; a
  // config's keys, which stay; whether torchtitan is written for, whose selective recompute is a
  // choice of FSDP2's.
  const HardwareProfile* hardware = nullptr;
  std::optional<ZeroConfig> given_zero;
  bool for_torchtitan = false;
  Objective objective = Objective::kThroughput;
  // GPU memory to leave free for what another executor takes beyond ours. Unset: none.
  std::function<ExtraMemory(const TrainSetup&)> extra_memory;
  // Choices that must not be taken although they run here. Unset: none.
  std::function<bool(const TrainSetup&)> excluded;
  double effort = 1;  // times every budget
  // Told of every program that was judged: how many so far. Unset: no one.
  std::function<void(uint64_t lowered)> progress;
};

// What the inputs want left free beside `setup`.
ExtraMemory ExtraMemoryOf(const SearchInputs& inputs, const TrainSetup& setup);

// How the answer over all stages was found: `cut_by_...`, judged and left say what became of every
// candidate.
struct SearchStats {
  uint64_t candidates = 0;
  uint64_t cut_by_memory = 0;  // bound above capacity, or a smaller micro-batch did not fit
  uint64_t cut_by_score = 0;   // bound no better than a choice that was lowered
  uint64_t judged = 0;         // by their program
  uint64_t left = 0;           // when the budget was spent
  // Programs, those for the other stages' best included; one serves all accumulations of 3 and
  // more.
  uint64_t lowered = 0;
  double seconds = 0;
};

struct StageBest {
  int stage = 0;
  std::optional<Candidate> candidate;  // none: nothing of this stage fits
  ChoiceEstimate estimate;             // of the candidate, as lowered; else of what comes closest
  // Whether no other candidate of the stage is better by more than kTieMargin. Of a stage that
  // cannot win, a search judges the most promising kLoserBudget candidates and leaves it at that.
  bool proven = true;

  // Whether the space has anything of the stage.
  bool can_run() const { return estimate.footprint.gpu_total() > 0; }
};
inline constexpr int kLoserBudget = 48;
// A question is given up, with the best so far, after lowering this many instructions: some hundred
// programs of 50 layers, a second or two. SearchInputs::effort multiplies it.
inline constexpr uint64_t kInstructionBudget = 4'000'000;
// Choices this close to the best found are not told apart: the model of a step's time is not that
// exact. Of them the simplest is taken (see Complexity).
inline constexpr double kTieMargin = 0.004;
// The least merit that ties with `most`.
inline double TieFloor(double most) { return most / (1 + kTieMargin); }

struct SearchResult {
  std::optional<size_t> best;  // into stages; none: nothing fits
  std::vector<StageBest> stages;
  bool gave_up = false;  // nothing that fits was found within the budget
  // 0 where the best is proven; else how much better, at most, a choice that was not judged could
  // be (see kInstructionBudget): 0.05 for 5 %.
  double gap = 0;
  SearchStats stats;
};

// A question to put to one space: the inputs', but for what is set.
struct Question {
  Objective objective = Objective::kThroughput;
  std::optional<uint64_t> gpu_capacity_bytes;
  std::optional<int64_t> global_batch;
  uint64_t instruction_budget = kInstructionBudget;
  int most_programs = std::numeric_limits<int>::max();
  std::function<bool(const Candidate&)> among;  // asked of each group (batch 1 x 1); unset: all
  bool any = false;                             // whatever is found to fit first answers
  std::vector<Candidate> first;                 // are judged before all others, whatever the budget
};

// A choice as its program has it.
struct Found {
  Candidate candidate;
  double tokens_per_second = 0;
  double step_seconds = 0;
  uint64_t gpu_bytes = 0;  // with runtime
  double merit = 0;        // tokens a second that choices are compared by
};

// The same of a choice that was judged, whether it fits or not.
struct JudgedChoice {
  Found found;
  bool fits = false;
};

struct Answer {
  std::optional<Found> found;  // none: nothing fits
  double gap = 0;              // as SearchResult's
  bool gave_up = false;        // nothing that fits was found within the budget
};

// The answer with so much memory a GPU (Cluster::gpu_capacity_bytes): of one kind from `from` up
// to, but not with, `to`. Where both are the same that memory alone was looked at.
struct MemoryAnswer {
  uint64_t from = 0, to = 0;
  std::optional<Found> found;  // as far as it is known; none: nothing fits
  double gap = 0;              // as Answer's

  bool operator<(const MemoryAnswer& other) const { return from < other.from; }
};

// Tokens a second that choices are compared by. A host's load is known less well than a GPU's, so
// offload has to be faster by kOffloadMargin to be preferred.
inline constexpr double kOffloadMargin = 0.02;
double Merit(const Candidate& candidate, double tokens_per_second);
inline double Merit(const Found& found) { return found.merit; }

// How simple a choice is, most important first: how exact its products, then its states and, of
// these alike, offload; how many GPUs share a sequence, then the stage; its shard groups,
// recompute, and how many further settings are not the default.
std::array<int, 5> Complexity(const Candidate& candidate);

// The link that decides how fast GPUs communicate, with another bandwidth: the one that a request
// sets, which is not always the one that a profile's measurements have.
struct OtherLink {
  const HardwareProfile* hardware = nullptr;
  bool network = false;  // between nodes; else between the GPUs of one node

  double present() const;  // bytes a second of a node, or of a GPU; each direction
  // The rate of three digits that is nearest to `rate`, of those that the options allow.
  double Typed(double rate) const;
  // With a rate that Typed gave.
  HardwareProfile Profile(double rate) const;
};

// Questions about the choices of one space. Keeps what it has looked at, so that further questions
// are cheap.
class ChoiceSearch {
 public:
  ChoiceSearch() = default;
  virtual ~ChoiceSearch() = default;
  ChoiceSearch(const ChoiceSearch&) = delete;
  ChoiceSearch& operator=(const ChoiceSearch&) = delete;

  // The best of each stage and of all. Programs judged for any question are remembered: a better
  // one that a later question finds is the next run's answer.
  virtual SearchResult Run() = 0;
  virtual Answer Best(const Question& question) = 0;
  // The best of all that was judged so far and fits; none: nothing does.
  virtual std::optional<Found> BestKnown() const = 0;
  // All that was judged so far, for whatever question, at the best of the batches that its program
  // serves; in the order of the space.
  virtual std::vector<JudgedChoice> Judged() const = 0;
  virtual ChoiceEstimate EstimateCandidate(const Candidate& candidate) const = 0;
  // The same space on other machines' terms, sharing what can be shared: programs, and where the
  // GPUs are the same what their kernels take; of other runtimes, on the same profile, what was
  // played. Not for two threads at once. REQUIRES: `inputs` differ from these in the space,
  // the clusters and what is asked alone; `same_gpus`: the clusters have GPUs of the same figures.
  virtual std::unique_ptr<ChoiceSearch> Like(SearchInputs inputs, bool same_gpus = true) const = 0;
  // The best with as many GPUs as `now`, with another bandwidth (OtherLink::Typed).
  virtual Answer BestAtBandwidth(const Found& now, const OtherLink& link, double rate) = 0;
  // By rising memory, up to `most`; ranges without a hole, from the least that anything fits in, as
  // far as a budget goes; or single memories. `now`: the answer with the present memory.
  virtual std::vector<MemoryAnswer> AnswersByMemory(const Found& now, uint64_t most) = 0;
  // GPU memory from which on a choice fits: its own, what the inputs want left free beside it, and
  // the cluster's reserve.
  virtual uint64_t GpuBytesNeeded(const Found& found) const = 0;
  // Whether it also is what a choice needs at least, so that answers change there and nowhere else.
  virtual bool needs_are_exact() const = 0;
  // Tokens a second of a GPU that no choice with such a micro-step passes, on however many GPUs:
  // those of its kernels alone. Infinity: not known.
  virtual double MostOfKernels(const Candidate& candidate) const = 0;
  // Whether a choice may reach that merit, as far as bounds tell.
  virtual bool MayReach(const Question& question, double merit) = 0;
  // What its answers cost so far, in instructions lowered.
  virtual uint64_t instructions_lowered() const = 0;
  virtual const SearchInputs& inputs() const = 0;

  const SearchCluster& ClusterOf(const Candidate& candidate) const;
};
// Of inputs.runtime.
std::unique_ptr<ChoiceSearch> MakeSearch(SearchInputs inputs);

// Of step programs.
class Searcher : public ChoiceSearch {
 public:
  // REQUIRES: ValidateModelSpec; every setup of the space passes ValidateSetup, batches apart.
  // Throws Error(kUsage) if even the smallest batch is more than can be planned.
  explicit Searcher(SearchInputs inputs);
  // Shares what either lowers with `like`. Questions cost, and find, what they do without: a
  // program that is shared counts as lowered. REQUIRES: model, base and lower options are those of
  // like's inputs. Not for two threads at once.
  Searcher(SearchInputs inputs, const Searcher& like);
  ~Searcher() override;

  SearchResult Run() override;
  Answer Best(const Question& question) override;
  std::optional<Found> BestKnown() const override;
  std::vector<JudgedChoice> Judged() const override;
  ChoiceEstimate EstimateCandidate(const Candidate& candidate) const override;
  std::unique_ptr<ChoiceSearch> Like(SearchInputs inputs, bool same_gpus) const override;
  Answer BestAtBandwidth(const Found& now, const OtherLink& link, double rate) override;
  std::vector<MemoryAnswer> AnswersByMemory(const Found& now, uint64_t most) override;
  uint64_t GpuBytesNeeded(const Found& found) const override;
  bool needs_are_exact() const override { return true; }
  double MostOfKernels(const Candidate& candidate) const override;
  bool MayReach(const Question& question, double merit) override;
  uint64_t instructions_lowered() const override;
  const SearchInputs& inputs() const override;

  // `candidate` in full. REQUIRES: its number of GPUs is one of the space's.
  Program LowerCandidate(const Candidate& candidate) const;

 private:
  friend SearchResult SearchByBruteForce(const SearchInputs& inputs);
  friend std::vector<struct CutCandidate> CutByMemory(const SearchInputs& inputs, size_t limit);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Searches at a few memories below and above the present one.
std::vector<MemoryAnswer> AnswersAtMemories(ChoiceSearch& search, const Found& now, uint64_t most);

// One run, for those who ask nothing further.
SearchResult Search(const SearchInputs& inputs);

// For tests and benchmarks: the same by lowering every candidate.
SearchResult SearchByBruteForce(const SearchInputs& inputs);

// Candidates that a search cuts by their memory bound, at most `limit` of them spread over the
// space: what a test lowers to see that no bound exceeds its program.
struct CutCandidate {
  Candidate candidate;
  MemoryBound bound;
};
std::vector<CutCandidate> CutByMemory(const SearchInputs& inputs, size_t limit);

}  // namespace zeroplan
