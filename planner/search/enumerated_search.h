// The best choice of a runtime that lists its choices one by one. The runtime judges each, except
// those that a smaller choice of their kind rules out.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "planner/search/search.h"

namespace zeroplan {

// Choices this close in merit count as equal; the simplest wins (Runtime::Complexity).
inline constexpr double kEnumeratedTieMargin = 0.005;

class EnumeratedSearch : public ChoiceSearch {
 public:
  // Throws Error(kUsage) for hardware that lacks figures needed for the runtime's time.
  explicit EnumeratedSearch(SearchInputs inputs);

  SearchResult Run() override { return Run(/*sweep=*/false); }
  // For tests: `sweep` judges every choice.
  SearchResult Run(bool sweep);
  Answer Best(const Question& question) override;
  std::optional<Found> BestKnown() const override { return best_; }
  std::vector<JudgedChoice> Judged() const override { return judged_; }
  ChoiceEstimate EstimateCandidate(const Candidate& candidate) const override;
  std::unique_ptr<ChoiceSearch> Like(SearchInputs inputs, bool same_gpus) const override;
  Answer BestAtBandwidth(const Found& now, const OtherLink& link, double rate,
                         Budget budget) override;
  std::vector<MemoryAnswer> AnswersByMemory(const Found& now, uint64_t most) override {
    return AnswersAtMemories(*this, now, most);
  }
  uint64_t GpuBytesNeeded(const Found& found) const override;
  bool needs_are_exact() const override { return false; }
  double MostOfKernels(const Candidate& candidate) const override;
  bool MayReach(const Question& /*question*/, double /*merit*/) override { return true; }
  uint64_t instructions_lowered() const override;
  const SearchInputs& inputs() const override { return inputs_; }

 private:
  EnumeratedSearch(SearchInputs inputs, std::shared_ptr<ChoiceJudge> judge);

  // Choices of `gpus` GPUs that answer `question`.
  std::vector<TrainSetup> ChoicesFor(const Question& question, int gpus) const;
  Cluster ClusterFor(const Question& question, int gpus) const;

  const SearchInputs inputs_;
  const std::shared_ptr<ChoiceJudge> judge_;  // shared with searches made by Like
  // The estimates of Run by candidate, and the judged choices in order.
  std::map<Candidate, ChoiceEstimate> estimates_;
  std::vector<JudgedChoice> judged_;
  std::optional<Found> best_;
};

}  // namespace zeroplan
