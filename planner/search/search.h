// The best choice of a space. For zeroplan's own executor: cuts candidates whose memory bound does
// not fit, or whose score bound does not beat the best known; lowers the others and judges them by
// their program: first the most promising of every kind, then those near the best of them, then all
// that could still be better. It reports lowered choices only.
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

// Bytes of one GPU's memory.
struct ExtraMemory {
  uint64_t fixed_bytes = 0;
  uint64_t bytes_per_sequence = 0;  // for each sequence of the micro-batch

  uint64_t Of(int64_t micro_batch) const {
    return fixed_bytes + static_cast<uint64_t>(micro_batch) * bytes_per_sequence;
  }
};

struct SearchInputs {
  const Runtime* runtime = &OwnExecutor();
  ModelSpec model;
  TrainSetup base;  // settings that the space leaves open: sequence length, precision, optimizer
  SearchSpace space;
  std::vector<SearchCluster> clusters;  // one for each of space.gpus, in that order
  LowerOptions lower;                   // options of programs
  TorchRecipe recipe;
  // For other runtimes than zeroplan's: the clusters' profile, which must outlive the search; a
  // config's keys, which stay; and whether the plan is for torchtitan, which offers selective
  // recompute for FSDP2.
  const HardwareProfile* hardware = nullptr;
  std::optional<ZeroConfig> given_zero;
  bool for_torchtitan = false;
  Objective objective = Objective::kThroughput;
  // GPU memory to leave free because another executor needs more than ours. Unset: none.
  std::function<ExtraMemory(const TrainSetup&)> extra_memory;
  // Choices that must be excluded although they can run here. Unset: none.
  std::function<bool(const TrainSetup&)> excluded;
  double effort = 1;  // multiplies every budget
  // Called after each judged program with the number so far. Unset: not called.
  std::function<void(uint64_t lowered)> progress;
};

// The memory that the inputs leave free in addition to the needs of `setup`.
ExtraMemory ExtraMemoryOf(const SearchInputs& inputs, const TrainSetup& setup);

// Statistics of the search for the answer over all stages: `cut_by_...`, judged and left classify
// all candidates.
struct SearchStats {
  uint64_t candidates = 0;
  uint64_t cut_by_memory = 0;  // bound above capacity, or a smaller micro-batch did not fit
  uint64_t cut_by_score = 0;   // bound no better than a choice that was lowered
  uint64_t judged = 0;         // lowered and timed
  uint64_t left = 0;           // not examined when the budget was spent
  // Programs, including those for the other stages' best; one serves all accumulations of 3 and
  // more.
  uint64_t lowered = 0;
  double seconds = 0;
};

struct StageBest {
  int stage = 0;
  std::optional<Candidate> candidate;  // none: nothing of this stage fits
  ChoiceEstimate
      estimate;  // the candidate's, as lowered; else that of the choice closest to fitting
  // Whether no other candidate of the stage is better by more than kTieMargin. In a stage that
  // cannot win, a search judges the most promising kLoserBudget candidates only.
  bool proven = true;

  // Whether the space has a choice of the stage.
  bool can_run() const { return estimate.footprint.gpu_total() > 0; }
};
inline constexpr int kLoserBudget = 48;
// A question is given up, with the best so far, after lowering this many instructions: some hundred
// programs of 50 layers, a second or two. SearchInputs::effort multiplies it.
inline constexpr uint64_t kInstructionBudget = 4'000'000;
// Choices this close to the best found count as equal, because the model of a step's time is not
// more exact. The simplest of them wins (see Complexity).
inline constexpr double kTieMargin = 0.004;
// The least merit that ties with `most`.
inline double TieFloor(double most) { return most / (1 + kTieMargin); }

struct SearchResult {
  std::optional<size_t> best;  // index into stages; none: nothing fits
  std::vector<StageBest> stages;
  bool gave_up = false;  // found nothing that fits within the budget
  // 0 if the best is proven; else how much better, at most, a choice could be that was not judged
  // (see kInstructionBudget): 0.05 for 5 %.
  double gap = 0;
  SearchStats stats;
};

// A question about one space. Members that are unset default to the inputs.
struct Question {
  Objective objective = Objective::kThroughput;
  std::optional<uint64_t> gpu_capacity_bytes;
  std::optional<int64_t> global_batch;
  uint64_t instruction_budget = kInstructionBudget;
  int most_programs = std::numeric_limits<int>::max();
  std::function<bool(const Candidate&)> among;  // called with each group (batch 1 x 1); unset: all
  bool any = false;                             // the first choice found to fit answers
  std::vector<Candidate> first;                 // judged before all others, whatever the budget
};

// A choice with the figures of its program.
struct Found {
  Candidate candidate;
  double tokens_per_second = 0;
  double step_seconds = 0;
  uint64_t gpu_bytes = 0;  // including the runtime
  double merit = 0;        // tokens a second by which choices are compared
};

// A stage's best choice as a search found it. REQUIRES: a choice of the stage fits.
Found FoundOf(const StageBest& stage, const Runtime& runtime);

// A judged choice, whether it fits or not.
struct JudgedChoice {
  Found found;
  bool fits = false;
  MemoryRoom room = MemoryRoom::kAmple;
};

struct Answer {
  std::optional<Found> found;  // none: nothing fits
  double gap = 0;              // as in SearchResult
  bool gave_up = false;        // found nothing that fits within the budget
};

enum class Budget : uint8_t { kPart, kPlan };

// The answer as a function of GPU memory (Cluster::gpu_capacity_bytes): of one kind from `from` up
// to, but not including, `to`. If both are equal, only that memory was examined.
struct MemoryAnswer {
  uint64_t from = 0, to = 0;
  std::optional<Found> found;  // if known; none: nothing fits
  double gap = 0;              // as in Answer

  bool operator<(const MemoryAnswer& other) const { return from < other.from; }
};

// Tokens a second by which choices are compared (Runtime::Merit).
inline double Merit(const Found& found) { return found.merit; }

// The complexity of a choice, most important first: inexactness of its matmuls, then of its states
// and, among equals, offload; how many GPUs share a sequence, then the stage; its shard groups,
// recompute, and how many further settings are not the default.
std::array<int, 5> Complexity(const Candidate& candidate);

// The link that decides how fast GPUs communicate, with another bandwidth: the bandwidth that a
// request sets, which may differ from the one that a profile's measurements give.
struct OtherLink {
  const HardwareProfile* hardware = nullptr;
  bool network = false;  // between nodes; else between the GPUs of one node

  double present() const;  // bytes a second of a node, or of a GPU; each direction
  // The rate of three digits nearest to `rate`, among those that the options allow.
  double Typed(double rate) const;
  // The profile with a rate returned by Typed.
  HardwareProfile Profile(double rate) const;
};

// Answers questions about the choices of one space. Keeps its results, so that further questions
// are cheap.
class ChoiceSearch {
 public:
  ChoiceSearch() = default;
  virtual ~ChoiceSearch() = default;
  ChoiceSearch(const ChoiceSearch&) = delete;
  ChoiceSearch& operator=(const ChoiceSearch&) = delete;

  // The best of each stage and of all. Remembers programs judged for any question: a better one
  // found by a later question is the next run's answer.
  virtual SearchResult Run() = 0;
  virtual Answer Best(const Question& question) = 0;
  // The best of all choices judged so far that fit; none: nothing does.
  virtual std::optional<Found> BestKnown() const = 0;
  // All choices judged so far, for any question, at the best of the batches that their program
  // serves; in the order of the space.
  virtual std::vector<JudgedChoice> Judged() const = 0;
  virtual ChoiceEstimate EstimateCandidate(const Candidate& candidate) const = 0;
  // A search of the same space on other machines, sharing programs, the times of kernels if the
  // GPUs are the same, and for other runtimes the played steps if the profile is. Not for two
  // threads at once. REQUIRES: `inputs` differ from these in the space, the clusters and the
  // question alone; `same_gpus`: the clusters have GPUs of the same figures.
  virtual std::unique_ptr<ChoiceSearch> Like(SearchInputs inputs, bool same_gpus = true) const = 0;
  // The best choice with as many GPUs as `now`, at another bandwidth (OtherLink::Typed).
  // Budget::kPlan: the answer of a plan for that bandwidth; kPart: one of many, found in less time.
  virtual Answer BestAtBandwidth(const Found& now, const OtherLink& link, double rate,
                                 Budget budget) = 0;
  // Answers by rising memory, up to `most`: ranges without a hole, from the least in which anything
  // fits, as far as a budget allows; or single memories. `now`: the answer with the present memory.
  virtual std::vector<MemoryAnswer> AnswersByMemory(const Found& now, uint64_t most) = 0;
  // GPU memory from which on a choice fits: its own, the memory that the inputs leave free in
  // addition, and the cluster's reserve.
  virtual uint64_t GpuBytesNeeded(const Found& found) const = 0;
  // Whether GpuBytesNeeded is also a lower bound, so that answers change exactly there.
  virtual bool needs_are_exact() const = 0;
  // An upper bound on a GPU's tokens a second for any choice with that micro-step, on any number of
  // GPUs: the rate of its kernels alone. Infinity: unknown.
  virtual double MostOfKernels(const Candidate& candidate) const = 0;
  // Whether a choice may reach that merit, according to the bounds.
  virtual bool MayReach(const Question& question, double merit) = 0;
  // The cost of its answers so far, in instructions lowered.
  virtual uint64_t instructions_lowered() const = 0;
  virtual const SearchInputs& inputs() const = 0;

  const SearchCluster& ClusterOf(const Candidate& candidate) const;
};
// Makes the search of inputs.runtime.
std::unique_ptr<ChoiceSearch> MakeSearch(SearchInputs inputs);

// The search over step programs.
class Searcher : public ChoiceSearch {
 public:
  // REQUIRES: ValidateModelSpec; every setup of the space passes ValidateSetup, batches apart.
  // Throws Error(kUsage) if even the smallest batch is too large to plan.
  explicit Searcher(SearchInputs inputs);
  // Shares lowered programs with `like`. Questions have the same cost and results as without: a
  // shared program counts as lowered. REQUIRES: model, base and lower options equal those of like's
  // inputs. Not for two threads at once.
  Searcher(SearchInputs inputs, const Searcher& like);
  ~Searcher() override;

  SearchResult Run() override;
  Answer Best(const Question& question) override;
  std::optional<Found> BestKnown() const override;
  std::vector<JudgedChoice> Judged() const override;
  ChoiceEstimate EstimateCandidate(const Candidate& candidate) const override;
  std::unique_ptr<ChoiceSearch> Like(SearchInputs inputs, bool same_gpus) const override;
  Answer BestAtBandwidth(const Found& now, const OtherLink& link, double rate,
                         Budget budget) override;
  std::vector<MemoryAnswer> AnswersByMemory(const Found& now, uint64_t most) override;
  uint64_t GpuBytesNeeded(const Found& found) const override;
  bool needs_are_exact() const override { return true; }
  double MostOfKernels(const Candidate& candidate) const override;
  bool MayReach(const Question& question, double merit) override;
  uint64_t instructions_lowered() const override;
  const SearchInputs& inputs() const override;

  // The complete program of `candidate`. REQUIRES: its number of GPUs is one of the space's.
  Program LowerCandidate(const Candidate& candidate) const;

 private:
  friend SearchResult SearchByBruteForce(const SearchInputs& inputs);
  friend std::vector<struct CutCandidate> CutByMemory(const SearchInputs& inputs, size_t limit);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Searches at a few memory sizes below and above the present one.
std::vector<MemoryAnswer> AnswersAtMemories(ChoiceSearch& search, const Found& now, uint64_t most);

// One run, for callers without further questions.
SearchResult Search(const SearchInputs& inputs);

// For tests and benchmarks: the same by lowering every candidate.
SearchResult SearchByBruteForce(const SearchInputs& inputs);

// A candidate that a search cuts by its memory bound. CutByMemory returns at most `limit` of them,
// spread over the space: a test lowers them to check that no bound exceeds its program.
struct CutCandidate {
  Candidate candidate;
  MemoryBound bound;
};
std::vector<CutCandidate> CutByMemory(const SearchInputs& inputs, size_t limit);

}  // namespace zeroplan
