// A runtime: a program that trains, whose memory and time are predicted. zeroplan's own executor,
// DeepSpeed and FSDP2 are three of them (planner/runtimes/runtime.cc has the list). Estimates,
// searches, advice and reports are written once, over this interface.
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

// The file formats in which a choice is written (planner/formats/config_format.h).
enum class ConfigFormat : uint8_t {
  kDeepSpeed,   // DeepSpeed's own JSON
  kHfTrainer,   // transformers' Trainer: JSON, and the matching TrainingArguments
  kAccelerate,  // the YAML of `accelerate launch`; with DeepSpeed also the JSON that it points to
  kTorchtitan,  // torchtitan's TOML
  // For zeroplan's own executor (planner/formats/launch_files.h).
  kSkyPilot,    // a SkyPilot task, YAML
  kKubernetes,  // a Kubernetes Job, YAML
};

// The inputs of predictions, except the choice and the machines' capacities. The pointees must
// outlive the judge.
struct JudgeInputs {
  ModelSpec model;
  LowerOptions lower;
  TorchRecipe recipe;
  const HardwareProfile* hardware = nullptr;  // null: no times
  const CostModel* costs = nullptr;           // the cluster's; null: no times of programs
};

// Predicts choices one by one, and caches results that similar choices share.
class ChoiceJudge {
 public:
  virtual ~ChoiceJudge() = default;

  // Predicts `setup` on `cluster`. Throws Error(kUsage) that names the field that is not modelled.
  virtual ChoiceEstimate Estimate(const TrainSetup& setup, const Cluster& cluster) = 0;
  // True for a choice that does not fit if no larger micro-batch of its kind fits either.
  virtual bool LargerMisfitToo(const ChoiceEstimate& choice, const Cluster& cluster);
  // A lower bound of the seconds of a micro-step like that of `setup`. 0: unknown.
  virtual double LeastMicroStepSeconds(const TrainSetup& setup, const Cluster& cluster);
  // The number of steps simulated so far.
  uint64_t played() const { return played_; }

 protected:
  uint64_t played_ = 0;
};

// The error of predictions against measured runs: "reserved", 0.102.
struct MarginOfError {
  std::string name;
  double share = 0;
};

// The parts of a request that not every runtime supports.
struct AskedOfRuntime {
  bool deterministic = false, async_save = false, documents = false, shares_sequences = false;
  std::string_view recipe;       // the first field of the recipe that is set: "compile"
  ConfigDocument config;         // DeepSpeed's
  std::string grad_accum_dtype;  // as given; empty: unset
  std::string master_weights, optimizer_states;  // the same; empty for fp32
  std::string matmul_dtype;                      // the same; empty unless fp8
  std::string_view own_fp8;  // a field of zeroplan's own FP8 that is set: "fp8_recipe"
};

// The facts, other than predictions, in which runtimes differ. The defaults describe a PyTorch
// program of other authors whose choices are judged one by one.
struct RuntimeFacts {
  // ---- kind of program ----

  // True: `zeroplan train` runs its plans, and answers do not name the runtime. False: answers name
  // it.
  bool trains_here = false;
  // It is a PyTorch program, which a TorchRecipe describes.
  bool has_recipe = true;
  // It trains models that zeroplan plans but does not train.
  bool trains_planned_models = true;
  // It reads the keys of a config under `_zeroplan`.
  bool own_config_keys = false;
  // Batches are rows of one length, into which documents are packed (DataUse::fixed_rows).
  bool fixed_rows = false;
  // Every rank keeps the whole model, as DistributedDataParallel does.
  bool replicates = false;
  // PyTorch's fully_shard wraps the layers, recomputes them and sends gathers.
  bool fully_shards = false;

  // ---- choices of a search ----

  bool searches_states = false;     // master weights and optimizer states in fewer bits
  bool own_fp8 = false;             // FP8 matmuls by zeroplan's recipes
  bool offloads_by_layer = false;   // activations of some layers in host memory
  bool searches_sequences = false;  // how many GPUs share a sequence, if the request leaves it open
  bool searches_groups = false;     // shard groups
  // Its search prunes most choices by bounds, so that another search costs milliseconds.
  bool bounds_search = false;

  // ---- predictions ----

  bool predicts_traffic = false;  // bytes that a step sends and copies
  bool predicts_saves = false;    // bytes and seconds of a checkpoint
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // ---- names ----

  virtual std::string_view key() const = 0;      // value of the field runtime: "deepspeed"
  virtual std::string_view name() const = 0;     // in sentences: "DeepSpeed"
  virtual std::string_view version() const = 0;  // as files are marked: "deepspeed 0.19.6"
  // "stage 2, optimizer on cpu, full recompute".
  virtual std::string Label(const TrainSetup& setup) const;
  // Label plus the other settings that distinguish choices: "stage 2 (micro-batch 4 x 2
  // micro-steps)".
  std::string ChoiceText(const TrainSetup& setup) const;
  // The part of ChoiceText with the runtime's own settings: ", reduce_bucket_size 5e7".
  virtual std::string SettingsText(const TrainSetup& setup) const;
  virtual std::string StageName(int stage) const;  // "Stage 2"

  // ---- capabilities ----

  // True if a choice is a step program, which can be lowered, shown and traced.
  virtual bool has_programs() const { return false; }
  virtual RuntimeFacts facts() const { return {}; }
  // Throws Error(kUsage) that names the field that the runtime lacks.
  virtual void Refuse(const AskedOfRuntime& asked) const = 0;
  // The choices to estimate where the request leaves them open.
  virtual ChoiceSpace EstimateSpace() const = 0;
  // Why the ranks of `batch` cannot share its sequences; nothing: they can. The default is the rule
  // for runtimes that exchange positions for heads (FindSequenceProblem). REQUIRES: the ranks
  // divide the tokens of a sequence.
  virtual std::optional<SetupProblem> SequenceProblem(const ModelSpec& model,
                                                      const BatchSpec& batch) const;
  // True if the runtime supports `setup` exactly as requested. If not, judging it throws the
  // reason.
  virtual bool Takes(const JudgeInputs& /*inputs*/, const TrainSetup& /*setup*/) const {
    return true;
  }
  // The requested setups that the runtime supports, in its own form. `given`: a config gave them.
  virtual std::vector<TrainSetup> Completed(std::vector<TrainSetup> setups, bool given) const;
  // Every choice of `space` at its first number of GPUs. Among choices that differ only in buckets,
  // the preferred one is first. If the runtime supports none of them, returns one that was
  // requested, so that judging it throws the reason.
  virtual std::vector<TrainSetup> Choices(const SearchInputs& inputs,
                                          const SearchSpace& space) const = 0;

  // ---- memory and time ----

  virtual std::unique_ptr<ChoiceJudge> Judge(const JudgeInputs& inputs) const = 0;
  virtual std::unique_ptr<ChoiceSearch> Search(SearchInputs inputs) const = 0;
  // The fact that the profile lacks to time its steps: "network.bandwidth_per_node"; empty: none.
  virtual std::string TimeLacks(const HardwareProfile& hardware, const ClusterShape& shape) const;
  // The tokens per second by which choices are compared: below the prediction where that is less
  // certain. 0: the choice does not fit.
  virtual double Merit(const ChoiceEstimate& choice) const = 0;
  // Measures of how complex a choice is, most important first.
  virtual std::array<int, 5> Complexity(const TrainSetup& setup) const;

  // ---- certainty ----

  virtual std::vector<MarginOfError> Margins() const { return {}; }
  // A paragraph on the errors of times, and of memory where it is not exact, against measured runs,
  // and on the knowledge about this kind of machine. "": there is none.
  virtual std::string MarginText(const Cluster& cluster, const HardwareProfile& hardware) const;
  // The largest time error of the runs that MarginText names for this kind of choice, as a share of
  // the prediction. 0: it names none.
  virtual double LargestTimeError(const ChoiceEstimate& choice, const Cluster& cluster,
                                  const HardwareProfile& hardware) const;
  // Cautions about `choice`, one paragraph each: how its memory fits, which predictions are less
  // certain, what its time is based on.
  virtual std::vector<std::string> Cautions(const ChoiceEstimate& choice, const Cluster& cluster,
                                            const HardwareProfile& hardware) const;
  // The part of the prediction for this setup that is less certain; "": none.
  virtual std::string Doubt(const TrainSetup& /*setup*/) const { return ""; }
  // Why `other`, which is about as fast as `best` or faster, is not the answer; "" or ", but ...".
  virtual std::string WhyNotTaken(const ChoiceEstimate& other, const ChoiceEstimate& best) const;
  // A sentence on the choices that were searched, if those are not all that the runtime has.
  virtual std::string SpaceText() const { return ""; }
  // The assumptions of estimates and plans about the code that is trained.
  virtual std::vector<std::string> Notes(const ChoiceEstimate& choice,
                                         const TorchRecipe& recipe) const;

  // ---- files ----

  // The runtime for which files of its choices are written: itself, or one that reads its config.
  virtual const Runtime& WritesFor() const { return *this; }
  // True if its config is DeepSpeed's JSON.
  virtual bool reads_deepspeed_config() const { return false; }
  // The parts of `setup` that `format` cannot express, "; " between several; empty: it expresses
  // all.
  virtual std::string FormatCannot(ConfigFormat format, const TrainSetup& setup) const = 0;
  // Why no setup can be written in `format`; empty: some can. `file`: as the user named it.
  virtual std::string NoFormat(ConfigFormat format, const std::string& file) const = 0;
  // The choice as JSON, used if no format is requested.
  virtual std::string ConfigJson(const TrainSetup& setup, int64_t layers) const = 0;
};

// zeroplan's own executor, the default runtime.
const Runtime& OwnExecutor();

}  // namespace zeroplan
