// zeroplan's own executor: its choices are step programs, lowered and walked.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/config/deepspeed_writer.h"
#include "core/settings/settings.h"
#include "core/settings/setup_facts.h"
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

// The largest errors that a text names for choices without and with anything on the host, as shares
// of the prediction; 0: none of these was compared.
struct OwnMargin {
  std::string text;
  double on_gpu = 0, on_host = 0;
};

// A run that is predicted within `share` of its own time takes at most so much more than predicted,
// as a share of the prediction.
constexpr double MostAbove(double share) { return share / (1 - share); }

// "30 random runs ... were predicted within 12.5 % of what they took, 2.7 % in the mean".
std::string WithinText(double worst, double mean) {
  return fmt::format(
      "within {:.3g} % of what they took, {:.2g} % in the mean, so took at most "
      "{:.0f} % more than predicted",
      100 * worst, 100 * mean, 100 * MostAbove(worst));
}

// The finding from published runs of programs with such kernels on this card, or on another form.
std::string LikeKernelsText(const HardwareProfile& hardware) {
  const PublishedMargin* of = PublishedMarginOf("zeroplan", hardware);
  const auto runs = [](const PublishedMargin& margin) {
    return fmt::format("{} published run{} of {} on {}", margin.time.runs,
                       margin.time.runs == 1 ? "" : "s", margin.programs, margin.gpu);
  };
  if (of != nullptr) {
    return fmt::format("{} took {}.", runs(*of), DifferenceText(of->time));
  }
  std::string text = "No published run of a program with such kernels on this card was compared.";
  if (const PublishedMargin* other = PublishedOnAnotherForm("zeroplan", hardware)) {
    text +=
        fmt::format(" {}, another form of it, took {}.", runs(*other), DifferenceText(other->time));
  }
  return text;
}

// "": the profile lacks what large matmuls reach.
std::string ScaledText(const HardwareProfile& hardware) {
  const auto& reached = hardware.gpu.reachable_peaks;
  if (reached.empty()) return "";
  const bool measured = std::any_of(reached.begin(), reached.end(), [](const auto& peak) {
    return peak.second.source == FigureSource::kMeasured;
  });
  return measured ? " and scaled to what large products reach here"
                  : " and scaled to what large products are taken to reach here, which nobody "
                    "measured";
}

OwnMargin TakenOverMargin(const HardwareProfile& hardware) {
  const PublishedMargin* of = PublishedMarginOf("zeroplan", hardware);
  return {fmt::format("Rates of kernels by shape are taken over from an H200{}; no step of "
                      "zeroplan's own executor was measured on this GPU. {}",
                      ScaledText(hardware), LikeKernelsText(hardware)),
          of != nullptr && of->time.MakeMargin() ? of->time.worst() : 0, 0};
}

// The finding from runs on machines whose profile 'hw measure' had made.
OwnMargin MeasuredMargin(const HardwareProfile& hardware) {
  const std::string made = "With profiles that 'zeroplan hw measure' made on the same machine, ";
  if (IsH200(hardware)) {
    constexpr double kOne = 0.076, kTwo = 0.098, kHost = 0.202;
    return {fmt::format("{}24 random runs on one H200 were predicted {}; 16 on two {}. Beside an "
                        "earlier profile a model of 10B with its optimizer on the host took {:.0f} "
                        "% more than predicted.",
                        made, WithinText(kOne, 0.028), WithinText(kTwo, 0.041), 100 * kHost),
            MostAbove(kTwo), kHost};
  }
  if (IsH100(hardware)) {
    constexpr double kGpu = 0.094, kHost = 0.25;
    return {fmt::format("{}17 random runs without offload on H100s were predicted {}; 20 with "
                        "offload on one of a shared host, by an earlier version, {}.",
                        made, WithinText(kGpu, 0.031), WithinText(kHost, 0.086)),
            MostAbove(kGpu), MostAbove(kHost)};
  }
  return {
      "Rates of kernels by shape were measured on this machine; no step of zeroplan's own executor "
      "was compared on this card. " +
      LikeKernelsText(hardware)};
}

// How far off step times were where the profile's figures come from the same place, beside runs on
// one node (docs/performance.md, "Predicted and measured"; docs/cost-model.md, "Published runs").
OwnMargin MarginOnOneNode(const HardwareProfile& hardware) {
  if (!hardware.gpu.gemm) return TakenOverMargin(hardware);
  if (MeasuredHere(hardware)) return MeasuredMargin(hardware);
  if (IsH200(hardware)) {
    constexpr double kGpu = 0.125, kHostOften = 0.25, kHost = 0.72;
    return {fmt::format("With the built-in profile of an H200, 50 random runs without offload on "
                        "two others were predicted {}; with offload, where the host's memory was "
                        "measured, by an earlier version, 24 of 25 within {:.0f} %, and one took "
                        "{:.0f} % more than predicted.",
                        WithinText(kGpu, 0.027), 100 * kHostOften, 100 * kHost),
            MostAbove(kGpu), kHost};
  }
  if (IsH100(hardware)) {
    constexpr double kGpu = 0.07, kHost = 0.16;
    return {fmt::format("Rates of kernels by shape were measured on this kind of GPU. Of "
                        "zeroplan's own executor six runs on another H100 took 1 to {:.0f} % less "
                        "than predicted; 20 random runs with offload on an H100 whose host's "
                        "memory was measured, with other rates of the GPU's, were predicted {}. {}",
                        100 * kGpu, WithinText(kHost, 0.096), LikeKernelsText(hardware)),
            kGpu, MostAbove(kHost)};
  }
  return {
      "Rates of kernels by shape were measured on this kind of GPU; no step of zeroplan's own "
      "executor was compared on it. " +
      LikeKernelsText(hardware)};
}

// The largest error that it names for such a choice; 0: it names none. On a host that nobody
// measured three runs with offload took 1.4 to 2.5 times as long as predicted (docs/performance.md,
// "Predicted and measured").
double LargestErrorOnOneNode(const ChoiceEstimate& choice, const HardwareProfile& hardware) {
  const OwnMargin margin = MarginOnOneNode(hardware);
  if (!UsesHost(choice.setup)) return margin.on_gpu;
  return HostWasMeasured(hardware) ? margin.on_host : 0;
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
  if (choice.mixture && !hardware.gpu.grouped) {
    add(time.compute_seconds, hardware.gpu.architecture == "hopper"
                                  ? "rates of experts' matmuls taken over from an H200"
                                  : "a guess of the experts' matmuls");
  }
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
    std::string text = MarginOnOneNode(hardware).text;
    if (cluster.nodes() > 1) {
      text += fmt::format(" Across nodes it was not measured at all: {}. {}", kFsdpAcrossNodes,
                          NetworkNote(hardware));
    }
    return text;
  }
  double LargestTimeError(const ChoiceEstimate& choice, const Cluster& cluster,
                          const HardwareProfile& hardware) const override {
    // Steps of mixtures, and those in FP8, were compared on one H200 alone, without offload.
    const bool on_one_h200 = IsH200(hardware) && cluster.gpus == 1 && !UsesHost(choice.setup);
    if ((choice.mixture || choice.setup.precision.fp8.enabled) && !on_one_h200) return 0;
    double here = LargestErrorOnOneNode(choice, hardware);
    if (here == 0) return 0;
    if (!PinsMemory(choice.setup.zero)) here = std::max(here, kPageableSummed);
    if (cluster.nodes() == 1) return here;
    if (MayUseSockets(hardware)) here = std::max(here, kSocketsWorst);
    return std::max(here, kFsdpAcrossNodesWorst);
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

  std::vector<std::string> Notes(const ChoiceEstimate& choice,
                                 const TorchRecipe& /*recipe*/) const override {
    const TrainSetup& setup = choice.setup;
    std::vector<std::string> notes;
    if (setup.batch.world_size > 1 && setup.zero.stage > 0) {
      notes.emplace_back(
          "Where reduce_bucket_size is not set, four sizes are searched; another one was up to "
          "1.1 % faster where it was tried.");
    }
    const bool can = setup.optimizer.gradient_clipping == 0 && setup.zero.stage >= 2 &&
                     setup.precision.dtype != Dtype::kF16;
    if (can && !setup.zero.optimizer_in_backward) {
      notes.emplace_back(
          "Updates in the backward pass are not searched; \"_zeroplan\": "
          "{\"optimizer_in_backward\": true} in ⟦config⟧ sets them.");
    }
    return notes;
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
