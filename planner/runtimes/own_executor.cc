// zeroplan's own executor: its choices are step programs, lowered and walked.
#include "core/base/error.h"
#include "core/config/deepspeed_writer.h"
#include "planner/estimate/choices.h"
#include "planner/runtimes/runtimes.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

class Own : public Runtime {
 public:
  std::string_view key() const override { return "zeroplan"; }
  std::string_view name() const override { return "zeroplan's own executor"; }
  std::string_view version() const override { return "zeroplan"; }

  bool has_programs() const override { return true; }
  void Refuse(const AskedOfRuntime& asked) const override {
    if (!asked.compile) return;
    ThrowUsage(
        "@@compile: has no effect on zeroplan's own executor; add @@runtime deepspeed or leave it "
        "out");
  }
  ChoiceSpace EstimateSpace() const override { return {}; }
  std::vector<TrainSetup> Choices(const SearchInputs& inputs,
                                  const SearchSpace& space) const override {
    std::vector<TrainSetup> setups;
    for (Candidate candidate : Groups(space)) {
      for (const BatchPair& batch : BatchPairs(space, candidate.gpus)) {
        candidate.micro_batch = batch.micro_batch;
        candidate.grad_accum = batch.grad_accum;
        setups.push_back(SetupOf(candidate, inputs.base));
      }
    }
    return setups;
  }

  std::unique_ptr<ChoiceJudge> Judge(const JudgeInputs& inputs) const override {
    return MakeProgramJudge(inputs);
  }
  std::unique_ptr<ChoiceSearch> Search(SearchInputs inputs) const override {
    return std::make_unique<Searcher>(std::move(inputs));
  }
  double Merit(const ChoiceEstimate& choice) const override {
    return zeroplan::Merit(CandidateOf(choice.setup), choice.time.tokens_per_second.value_or(0));
  }

  bool reads_deepspeed_config() const override { return true; }
  // Its config is DeepSpeed's: what that cannot have.
  std::string FormatCannot(ConfigFormat format, const TrainSetup& setup) const override {
    return DeepSpeedRuntime().FormatCannot(format, setup);
  }
  std::string NoFormat(ConfigFormat format, const std::string& file) const override {
    return DeepSpeedRuntime().NoFormat(format, file);
  }
  std::string ConfigJson(const TrainSetup& setup, int64_t layers) const override {
    return WriteDeepSpeedConfig(setup, layers);
  }
};

}  // namespace

const Runtime& OwnExecutor() {
  static const Own own;
  return own;
}

}  // namespace zeroplan
