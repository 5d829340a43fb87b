// zeroplan's own executor: its choices are step programs, lowered and walked.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/config/deepspeed_writer.h"
#include "core/settings/settings.h"
#include "cost_models/collective_cost.h"
#include "hwprofiles/guesses.h"
#include "hwprofiles/sanity.h"
#include "planner/cluster.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/estimate.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/runtimes.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

// Whether 'hw measure' made the profile; what is found on this machine without it has a built-in
// GPU's rates.
bool MeasuredHere(const HardwareProfile& hardware) {
  return hardware.source != "built in" && hardware.source != kFoundSource;
}

// How far off step times were where the profile's figures come from the same place, beside runs on
// one node (docs/performance.md, "Predicted and measured"; docs/cost-model.md, "Published runs").
std::string MarginOnOneNode(const HardwareProfile& hardware) {
  if (!hardware.gpu.gemm) {
    return fmt::format(
        "Rates of kernels by shape are taken over from an H200{}; no step of zeroplan's own "
        "executor was measured on this GPU. Of the fastest code of others, 21 published runs of "
        "LLM.Q "
        "on RTX 4090, 5090, 5060 Ti, RTX PRO 6000 and L40S took 3 % more or less than predicted in "
        "the "
        "median, 13 % at most, and five tuned runs on A100 and V100 7 to 32 % more.",
        hardware.gpu.reachable_peaks.empty() ? ""
                                             : " and scaled to what large products reach here");
  }
  if (MeasuredHere(hardware)) {
    return "With profiles that 'zeroplan hw measure' made on the same machine, 24 random runs on "
           "one H200 took 2.7 % more or less than predicted in the mean, 7 % at most, and 16 on "
           "two 4.1 %, 11 % at most; 20 with offload on an H100 of a shared host, by an earlier "
           "version, 8.6 %, 25 % at most.";
  }
  if (!IsH200(hardware)) {
    return "Rates of kernels by shape were measured on this kind of GPU. Of zeroplan's own "
           "executor six runs on another H100 took 1 to 7 % less than predicted; 20 random runs "
           "with offload on an H100 whose host's memory was measured, with other rates of the "
           "GPU's, 9.6 % more or less in the mean, 16 % at most. Eight published runs of LLM.Q, "
           "whose kernels are as fast, took up to 4 % less than predicted on H100s.";
  }
  return "With the built-in profile of an H200, 50 random runs without offload on two others took "
         "2.7 % more or less than predicted in the mean, 11 % at most; with offload, where the "
         "host's memory was measured, by an earlier version, 24 of 25 within 25 %, one 72 % more.";
}

// The largest error that it names for such a choice; 0: it names none. On a host that nobody
// measured three runs with offload took 1.4 to 2.5 times as long as predicted (docs/performance.md,
// "Predicted and measured").
double LargestErrorOnOneNode(const ChoiceEstimate& choice, const HardwareProfile& hardware) {
  const std::optional<Figure>& host =
      hardware.node.adam_bandwidth ? hardware.node.adam_bandwidth : hardware.node.triad_bandwidth;
  const bool offloads = Offloads(CandidateOf(choice.setup));
  if (offloads && (!host || host->source != FigureSource::kMeasured)) return 0;
  if (!hardware.gpu.gemm) {
    // LLM.Q's runs were on cards of Ada and Blackwell, the tuned ones on what came before; none had
    // offload.
    const int capability = ComputeCapability(hardware.gpu.architecture);
    return offloads ? 0 : capability == 89 || capability == 120 ? 0.13 : 0.32;
  }
  if (MeasuredHere(hardware)) return offloads ? 0.25 : 0.11;
  if (!IsH200(hardware)) return offloads ? 0.16 : 0.07;
  return offloads ? 0.72 : 0.11;
}

// What the time of `choice` takes for granted, that on which most of the step rests first.
std::string RestsOn(const ChoiceEstimate& choice, const Cluster& cluster,
                    const HardwareProfile& hardware) {
  const TimeEstimate& time = choice.time;
  std::vector<std::pair<double, std::string>> parts;
  const auto add = [&](const std::optional<double>& seconds, std::string what) {
    if (seconds.value_or(0) > 0) parts.emplace_back(*seconds, std::move(what));
  };
  if (!hardware.gpu.gemm) add(time.compute_seconds, "rates of kernels taken over from an H200");
  if (cluster.nodes() > 1) {
    add(time.exposed_comm_seconds, "what the network reaches");
    add(kGpuSpread * time.compute_seconds.value_or(0),
        fmt::format("GPUs that differ by {:.2g} % in speed, as published runs suggest",
                    100 * kGpuSpread));
  } else if (cluster.gpus > 1 && !hardware.node.collectives) {
    add(time.exposed_comm_seconds, "NCCL's share of the links, taken over from an H200's");
  }
  const auto guessed =
      GuessedFigures(hardware, PartsUsed(choice.setup, 1, 1), cluster.ranks_per_node());
  if (!guessed.empty()) add(time.exposed_offload_seconds, "guessed figures of the host");
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (const auto& [seconds, what] : parts) text += (text.empty() ? "" : ", then ") + what;
  return text.empty() ? "" : fmt::format("The time rests most on {}.", text);
}

class Own : public Runtime {
 public:
  std::string_view key() const override { return "zeroplan"; }
  std::string_view name() const override { return "zeroplan's own executor"; }
  std::string_view version() const override { return "zeroplan"; }

  bool has_programs() const override { return true; }
  RuntimeFacts facts() const override {
    return {.trains_here = true,
            .has_recipe = false,
            .trains_planned_models = false,
            .own_config_keys = true,
            .fixed_rows = true,
            .searches_states = true,
            .own_fp8 = true,
            .offloads_by_layer = true,
            .searches_sequences = true,
            .searches_groups = true,
            .bounds_search = true,
            .predicts_traffic = true,
            .predicts_saves = true};
  }
  void Refuse(const AskedOfRuntime& asked) const override {
    if (asked.recipe.empty()) return;
    if (asked.recipe == setting::optimizer_in_backward.name) {
      ThrowUsage(
          "⟦optimizer_in_backward⟧: zeroplan's own executor takes it from a config: "
          "\"_zeroplan\": {{\"optimizer_in_backward\": true}}, with stage 2 or 3 and "
          "gradient_clipping 0");
    }
    ThrowUsage("⟦{}⟧: has no effect on zeroplan's own executor; add ⟦runtime⟧ {} or leave it out",
               asked.recipe, asked.recipe == setting::float8.name ? "fsdp2" : "deepspeed");
  }
  ChoiceSpace EstimateSpace() const override { return {}; }
  std::vector<TrainSetup> Choices(const SearchInputs& inputs,
                                  const SearchSpace& space) const override {
    std::vector<TrainSetup> setups;
    for (Candidate candidate : Groups(space)) {
      for (const BatchPair& batch : BatchPairs(space, candidate.data_ranks())) {
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
    return choice.time.tokens_per_second.value_or(0);
  }

  std::string MarginText(const Cluster& cluster, const HardwareProfile& hardware) const override {
    std::string text = MarginOnOneNode(hardware);
    if (cluster.nodes() > 1) {
      text += fmt::format(" Across nodes it was not measured at all: {}. {}", kFsdpAcrossNodes,
                          NetworkNote(hardware));
    }
    return text;
  }
  double LargestTimeError(const ChoiceEstimate& choice, const Cluster& cluster,
                          const HardwareProfile& hardware) const override {
    const bool fp8 = choice.setup.precision.fp8.enabled;
    const bool offloads = Offloads(CandidateOf(choice.setup));
    if (fp8 && (!IsH200(hardware) || cluster.gpus > 1 || offloads)) return 0;
    double here = LargestErrorOnOneNode(choice, hardware);
    if (here == 0) return 0;
    if (!PinsMemory(choice.setup.zero)) here = std::max(here, kPageableSummed);
    return cluster.nodes() > 1 ? std::max(here, kFsdpAcrossNodesWorst) : here;
  }
  std::vector<std::string> Cautions(const ChoiceEstimate& choice, const Cluster& cluster,
                                    const HardwareProfile& hardware) const override {
    std::vector<std::string> cautions;
    if (std::string text = RestsOn(choice, cluster, hardware); !text.empty()) {
      cautions.push_back(std::move(text));
    }
    if (!PinsMemory(choice.setup.zero)) {
      cautions.push_back(fmt::format(
          "Copies of memory that is not page-locked were measured in two runs on one H100: a step "
          "took {:.0f} % more than predicted, one that sums gradients over micro-steps {:.0f} %.",
          100 * kPageableOnce, 100 * kPageableSummed));
    }
    if (std::string doubt = Doubt(choice.setup); !doubt.empty()) {
      cautions.push_back(std::move(doubt));
    }
    return cautions;
  }

  std::string Doubt(const TrainSetup& setup) const override {
    if (!setup.precision.fp8.enabled) return "";
    return "Of runs with products in FP8, four on one H200 each took up to 2 % less than "
           "predicted, five on an H100 1 to 7 % less, one at stage 3 on two H200s 6 % more, and "
           "one on four H100s 2 % more; no other one was compared.";
  }

  const Runtime& WritesFor() const override { return DeepSpeedRuntime(); }
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
