// Whose memory and time is predicted: a program that trains. zeroplan's own executor, DeepSpeed and
// FSDP2 are three of them (planner/runtimes/runtime.cc has the list). Estimates, searches, advice
// and reports are written once, over what stands here.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/config_document.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "core/settings/zero_config.h"
#include "planner/torch_recipe.h"

namespace zeroplan {

class ChoiceSearch;      // planner/search/search.h
class CostModel;         // cost_models/cost_model.h
struct ChoiceEstimate;   // planner/estimate/estimate.h
struct ChoiceSpace;      // planner/estimate/choices.h
struct Cluster;          // planner/cluster.h
struct ClusterShape;     // cost_models/cluster_shape.h
struct HardwareProfile;  // hwprofiles/profile.h
struct SearchInputs;     // planner/search/search.h
struct SearchSpace;      // planner/search/search_space.h

// What a choice is written for (planner/formats/config_format.h).
enum class ConfigFormat : uint8_t {
  kDeepSpeed,   // DeepSpeed's own JSON
  kHfTrainer,   // transformers' Trainer: JSON, and the TrainingArguments that go with it
  kAccelerate,  // the YAML of `accelerate launch`; with DeepSpeed also the JSON that it points to
  kTorchtitan,  // torchtitan's TOML
  // Of zeroplan's own executor (planner/formats/launch_files.h).
  kSkyPilot,    // a SkyPilot task, YAML
  kKubernetes,  // a Kubernetes Job, YAML
};

// All that predictions depend on beside the choice and the machines' capacities. What it points to
// must outlive the judge.
struct JudgeInputs {
  ModelSpec model;
  LowerOptions lower;
  TorchRecipe recipe;
  const HardwareProfile* hardware = nullptr;  // null: no times
  const CostModel* costs = nullptr;           // of the cluster; null: no times of programs
};

// Predicts choices one by one, and keeps what others are like.
class ChoiceJudge {
 public:
  virtual ~ChoiceJudge() = default;

  // `setup` on `cluster`. Throws Error(kUsage) naming the field that is not modelled.
  virtual ChoiceEstimate Estimate(const TrainSetup& setup, const Cluster& cluster) = 0;
  // Of a choice that does not fit: whether no larger micro-batch of its kind fits either.
  virtual bool LargerMisfitToo(const ChoiceEstimate& choice, const Cluster& cluster);
  // Seconds that no micro-step like that of `setup` goes below. 0: not known.
  virtual double LeastMicroStepSeconds(const TrainSetup& setup, const Cluster& cluster);
  // Steps that were played so far.
  uint64_t played() const { return played_; }

 protected:
  uint64_t played_ = 0;
};

// How far predictions were off beside measured runs: "reserved", 0.102.
struct MarginOfError {
  std::string name;
  double share = 0;
};

// What of a request not every runtime has.
struct AskedOfRuntime {
  bool deterministic = false, async_save = false, documents = false, shares_sequences = false;
  std::string_view recipe;       // the first of the recipe's fields that is given: "compile"
  ConfigDocument config;         // DeepSpeed's
  std::string grad_accum_dtype;  // as given; empty: not given
  std::string master_weights, optimizer_states;  // the same; empty where fp32
  std::string matmul_dtype;                      // the same; empty but for fp8
  std::string_view own_fp8;  // of zeroplan's own FP8 a field that is given: "fp8_recipe"
};

// The facts by which runtimes differ beside their predictions. The defaults are those of a PyTorch
// program of other authors whose choices are judged one by one.
struct RuntimeFacts {
  // ---- what it is ----

  // `zeroplan train` runs its plans, and answers do not name it. False: they do.
  bool trains_here = false;
  // Its code is PyTorch's, which a TorchRecipe describes.
  bool has_recipe = true;
  // It trains models that zeroplan plans without training them.
  bool trains_planned_models = true;
  // It reads a config's keys of `_zeroplan`.
  bool own_config_keys = false;
  // Batches are rows of one length, which documents are packed into (DataUse::fixed_rows).
  bool fixed_rows = false;
  // Every rank keeps the whole model, as DistributedDataParallel does.
  bool replicates = false;
  // PyTorch's fully_shard wraps the layers: it recomputes them, and sends gathers.
  bool fully_shards = false;

  // ---- what a search may choose ----

  bool searches_states = false;     // master weights and optimizer states in fewer bits
  bool own_fp8 = false;             // products in FP8 by zeroplan's recipes
  bool offloads_by_layer = false;   // activations of some layers in host memory
  bool searches_sequences = false;  // how many GPUs share a sequence, where nobody asks
  bool searches_groups = false;     // shard groups
  // Its search cuts most choices by bounds, so that one more takes milliseconds.
  bool bounds_search = false;
  // Merit takes kOffloadMargin from what offloads, and nothing else.
  bool weighs_offload_alone = false;

  // ---- what is predicted ----

  bool predicts_traffic = false;  // bytes that a step sends and copies
  bool predicts_saves = false;    // bytes and seconds of a checkpoint
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // ---- what it is called ----

  virtual std::string_view key() const = 0;      // of the field runtime: "deepspeed"
  virtual std::string_view name() const = 0;     // in sentences: "DeepSpeed"
  virtual std::string_view version() const = 0;  // as files are marked: "deepspeed 0.19.6"
  // "stage 2, optimizer on cpu, full recompute".
  virtual std::string Label(const TrainSetup& setup) const;
  // With what else tells choices apart: "stage 2 (micro-batch 4 x 2 micro-steps)".
  std::string ChoiceText(const TrainSetup& setup) const;
  // Of ChoiceText what its own settings are: ", reduce_bucket_size 5e7".
  virtual std::string SettingsText(const TrainSetup& setup) const;
  virtual std::string StageName(int stage) const;  // "Stage 2"

  // ---- what it can do ----

  // Whether a choice is a step program, which can be lowered, shown and traced.
  virtual bool has_programs() const { return false; }
  virtual RuntimeFacts facts() const { return {}; }
  // Throws Error(kUsage) naming the field that it does not have.
  virtual void Refuse(const AskedOfRuntime& asked) const = 0;
  // What is estimated where the request leaves it open.
  virtual ChoiceSpace EstimateSpace() const = 0;
  // Why so many ranks cannot share sequences of so many tokens; nothing: they can. As it is, the
  // rule of those that trade positions for heads (FindSequenceProblem). REQUIRES: they divide the
  // tokens.
  virtual std::optional<SetupProblem> SequenceProblem(const ModelSpec& model,
                                                      const BatchSpec& batch) const;
  // Whether it has `setup` as it is asked for; where not, judging it throws what says why.
  virtual bool Takes(const JudgeInputs& /*inputs*/, const TrainSetup& /*setup*/) const {
    return true;
  }
  // Of setups that were asked for those that it has, as it has them. `given`: they are a config's.
  virtual std::vector<TrainSetup> Completed(std::vector<TrainSetup> setups, bool given) const;
  // Every choice of `space` at its first number of GPUs; of those that differ in buckets alone the
  // preferred one first. Where it has none of them: one that was asked for, so that judging it
  // throws what says why.
  virtual std::vector<TrainSetup> Choices(const SearchInputs& inputs,
                                          const SearchSpace& space) const = 0;

  // ---- what it takes ----

  virtual std::unique_ptr<ChoiceJudge> Judge(const JudgeInputs& inputs) const = 0;
  virtual std::unique_ptr<ChoiceSearch> Search(SearchInputs inputs) const = 0;
  // What the profile lacks to time its steps: "network.bandwidth_per_node"; empty: nothing.
  virtual std::string TimeLacks(const HardwareProfile& hardware, const ClusterShape& shape) const;
  // Tokens a second that choices are compared by: less than predicted where the prediction is known
  // less well. 0: it does not fit.
  virtual double Merit(const ChoiceEstimate& choice) const = 0;
  // What makes a choice less simple than another, most important first.
  virtual std::array<int, 5> Complexity(const TrainSetup& setup) const;

  // ---- how sure that is ----

  virtual std::vector<MarginOfError> Margins() const { return {}; }
  // How far off times, and memory where it is not exact, were beside measured runs, with what is
  // known of such a machine; a paragraph. "": it has none.
  virtual std::string MarginText(const Cluster& cluster, const HardwareProfile& hardware) const;
  // The largest error of time of the runs that MarginText names for such a choice, as a share of
  // the prediction. 0: it names none.
  virtual double LargestTimeError(const ChoiceEstimate& choice, const Cluster& cluster,
                                  const HardwareProfile& hardware) const;
  // What of `choice` is to be known beside it, a paragraph each: how its memory fits, what is known
  // less well, what its time rests on.
  virtual std::vector<std::string> Cautions(const ChoiceEstimate& choice, const Cluster& cluster,
                                            const HardwareProfile& hardware) const;
  // What is known less well of predictions for such a setup; "": nothing of it stands out.
  virtual std::string Doubt(const TrainSetup& /*setup*/) const { return ""; }
  // Why `other`, which is about as fast as `best` or faster, is not the answer; "" or ", but ...".
  virtual std::string WhyNotTaken(const ChoiceEstimate& other, const ChoiceEstimate& best) const;
  // What was searched, in a sentence, where that is not all that it has.
  virtual std::string SpaceText() const { return ""; }
  // What estimates and plans take for granted of the code that is trained.
  virtual std::vector<std::string> Notes(const ChoiceEstimate& choice,
                                         const TorchRecipe& recipe) const;

  // ---- what it emits ----

  // The runtime for which its choices are written as files: itself, or one that reads its config.
  virtual const Runtime& WritesFor() const { return *this; }
  // Whether its config is DeepSpeed's JSON.
  virtual bool reads_deepspeed_config() const { return false; }
  // What `format` cannot say of `setup`, "; " between several; empty: it says all.
  virtual std::string FormatCannot(ConfigFormat format, const TrainSetup& setup) const = 0;
  // Why no setup can be written so; empty: some can. `file`: as the user named it.
  virtual std::string NoFormat(ConfigFormat format, const std::string& file) const = 0;
  // The choice as JSON where no format is asked for.
  virtual std::string ConfigJson(const TrainSetup& setup, int64_t layers) const = 0;
};

// zeroplan's own executor, which is meant where nothing else is said.
const Runtime& OwnExecutor();

}  // namespace zeroplan
