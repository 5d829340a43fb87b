// The common base of runtimes that train in PyTorch processes. Their memory is the memory that an
// allocator reserves, their time that of eager or compiled kernels and of a Python thread.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "planner/footprint.h"
#include "planner/runtime.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/torch_model.h"
#include "planner/runtimes/torch_offload.h"
#include "planner/runtimes/torch_timer.h"
#include "planner/search/search_space.h"

namespace zeroplan {

// The places where a choice keeps states and parameters.
struct OffloadPlace {
  OptimizerOffload optimizer;
  OffloadDevice param = OffloadDevice::kNone;
  bool pin_memory = true;

  bool anything() const {
    return optimizer.device != OffloadDevice::kNone || param != OffloadDevice::kNone;
  }
};

// The number of micro-steps that are simulated of a step: the first, one between, the last.
inline constexpr int64_t kPlayedMicroSteps = 3;

// The run that is simulated: a model's 16-bit training with Adam in fp32, under one setup. Fields
// that setup.zero leaves out, or has as kAuto, have DeepSpeed's defaults
// (core/config/reader_state.h).
struct TorchPlay {
  ModelSpec model;
  TrainSetup setup;
  TorchRecipe recipe;
  const HardwareProfile* hardware = nullptr;  // the GPU's profile; null: unknown
  int gpus_per_node = 0;                      // the cluster's; 0: all ranks are in one node
  // The allocator's limit (torch.cuda.set_per_process_memory_fraction, or the card's memory less
  // context): it empties its cache rather than exceed it. None: unlimited.
  std::optional<uint64_t> limit_bytes;
  // True: also simulates the phases around the steps (TorchFootprint::around).
  bool around = false;
  // True: simulates the modules' own work alone, without a runtime that holds, gathers, reduces or
  // updates anything.
  bool bare = false;
};

// The run of `setup` as its modules see it.
TorchRun TorchRunOf(const TrainSetup& setup, const TorchRecipe& recipe);

struct PlayedRun;  // planner/runtimes/torch_phases.h

// How many steps of a runtime are simulated, and the stages for which ContextBytes and
// HostBaseBytes are called.
struct PlayedParts {
  int steps;  // until tensors and segments repeat
  int context_stage, host_stage;
};

class TorchBased : public Runtime {
 public:
  // Simulates rank 0's memory, and its time if `timer` is given. Throws Error(kUsage) that names
  // the field that is not modelled.
  TorchFootprint Play(TorchPlay play, TorchTimer* timer = nullptr) const;
  virtual const RuntimeMargins& margins() const = 0;

  void Refuse(const AskedOfRuntime& asked) const override;
  std::optional<SetupProblem> SequenceProblem(const ModelSpec& model,
                                              const BatchSpec& batch) const override;
  bool Takes(const JudgeInputs& inputs, const TrainSetup& setup) const override;
  std::vector<TrainSetup> Choices(const SearchInputs& inputs,
                                  const SearchSpace& space) const override;
  std::unique_ptr<ChoiceJudge> Judge(const JudgeInputs& inputs) const override;
  std::unique_ptr<ChoiceSearch> Search(SearchInputs inputs) const override;
  std::string TimeLacks(const HardwareProfile& hardware, const ClusterShape& shape) const override;
  // To be preferred, a choice with offload must be faster by kOffloadMargin, which is a caution,
  // not a measurement. A choice that keeps the stated error of memory free goes before one that
  // does not (tight), and that before one that empties its cache while it runs; a choice at risk
  // comes last. Each segment that a choice frees and allocates again in a step counts
  // kSegmentSeconds (the driver waits for the GPU to free one).
  double Merit(const ChoiceEstimate& choice) const override;
  std::array<int, 5> Complexity(const TrainSetup& setup) const override;
  std::vector<MarginOfError> Margins() const override;
  double LargestTimeError(const ChoiceEstimate& choice, const Cluster& cluster,
                          const HardwareProfile& hardware) const override;
  std::string MarginText(const Cluster& cluster, const HardwareProfile& hardware) const override;
  std::vector<std::string> Cautions(const ChoiceEstimate& choice, const Cluster& cluster,
                                    const HardwareProfile& hardware) const override;
  std::string WhyNotTaken(const ChoiceEstimate& other, const ChoiceEstimate& best) const override;
  std::vector<std::string> Notes(const ChoiceEstimate& choice,
                                 const TorchRecipe& recipe) const override;

 protected:
  // Refuses parts of `play` that are not modelled, by RefuseIf.
  virtual void RefuseSetup(const TorchPlay& play) const = 0;
  template <typename... Args>
  void RefuseIf(bool refused, fmt::format_string<Args...> why, Args&&... args) const {
    if (!refused) return;
    ThrowUsage("⟦runtime⟧ {}: {}", key(), fmt::format(why, std::forward<Args>(args)...));
  }
  virtual PlayedParts Parts(int stage) const = 0;
  virtual std::unique_ptr<TorchRuntime> MakeEngine(const TorchModel& model, const TorchPlay& play,
                                                   TorchMemory* memory,
                                                   TorchTimer* timer) const = 0;
  // True if trained tensors, adapters or parameters, are in fp32 where modules run, under autocast.
  virtual bool CastsTrained(const TorchPlay& /*play*/) const { return false; }
  // True if programs can train with torchao's FP8 matmuls.
  virtual bool HasFloat8() const { return true; }
  void RefuseFloat8(const TorchPlay& play) const;
  // HasUlysses: programs have DeepSpeed's Ulysses (torch_sequence.h) and TiledMLP (tiled_step.cc).
  // HasRing: they have PyTorch's ring attention.
  virtual bool HasUlysses() const { return false; }
  virtual bool HasRing() const { return false; }
  void RefuseSequences(const TorchPlay& play) const;
  void RefuseUlysses(const TorchPlay& play) const;
  void RefuseRing(const TorchPlay& play) const;
  void RefuseTiles(const TorchPlay& play) const;
  // Refuses what FSDP2 and DDP do not train in: fp32, and fp16 unless the optimizer holds fp32.
  void RefuseDtype(const TorchPlay& play, Dtype held) const;
  void RefuseExperts(const TorchPlay& play) const;
  // Refuses adapters that are modelled for no runtime, or not for this one.
  void RefuseAdapters(const TorchPlay& play) const;
  // Refuses every part of `play` that is not modelled.
  void RefusePlay(const TorchPlay& play) const;
  // True if the Trainer runs the model under autocast.
  virtual bool HasAutocast() const { return true; }
  // The method by which programs move inputs of checkpointed layers to the host.
  virtual const ActivationOffloading& Offloading() const { return kTorchtuneOffloading; }
  // True if DeepSpeed's functions separate the modules of compiled layers.
  virtual bool HasModuleGraphs(int /*stage*/) const { return false; }
  // The peaks of loading, saving and resuming, as far as they are known.
  virtual std::vector<AroundPeak> Around(const PlayedRun& /*run*/) const { return {}; }
  // The peaks of gathers of the whole model that scripts may ask for.
  virtual std::vector<AroundPeak> Gathers(const PlayedRun& /*run*/) const { return {}; }
  // CanDo: the runtime supports `offloads` at `stage`. CanGroup: it also supports the shard groups
  // of `grouping`. CanRecompute: the recompute is modelled.
  virtual bool CanDo(int stage, const OffloadPlace& offloads) const = 0;
  virtual bool CanGroup(int stage, const OffloadPlace& offloads,
                        const Grouping& grouping) const = 0;
  virtual bool CanRecompute(const SearchInputs& /*inputs*/,
                            const RecomputeConfig& recompute) const {
    return IsNoneOrEveryLayer(recompute);
  }
  static bool IsNoneOrEveryLayer(const RecomputeConfig& recompute) {
    return recompute == kNoRecompute || recompute == FullRecompute();
  }
  void RefuseOtherRecompute(const RecomputeConfig& recompute) const {
    RefuseIf(!IsNoneOrEveryLayer(recompute),
             "recompute is modelled for none and for every layer (torch.utils.checkpoint); give "
             "⟦checkpointing⟧ none or full, ⟦checkpoint_every⟧ 1 and no ⟦checkpoint_layers⟧");
  }
  // A setup without shard groups, which the caller sets. The default searches none of ZeRO's keys.
  virtual TrainSetup SetupFor(const SearchInputs& inputs, int gpus, int stage,
                              const OffloadPlace& offloads) const;
  // `setup` with each combination of the runtime's own settings that are searched, the preferred
  // first.
  virtual std::vector<TrainSetup> WithSettings(const SearchInputs& /*inputs*/,
                                               const TrainSetup& setup) const {
    return {setup};
  }
  // The share of its predicted speed with which a choice is ranked.
  virtual double Trust(const TrainSetup& /*setup*/) const { return 1; }
  // The part of the prediction that is less certain than the margins; "": none.
  std::string Doubt(const TrainSetup& setup) const override;
  // The optimizer of a recipe that names none: "DeepSpeed's own optimizers".
  virtual std::string_view OptimizerText() const;
};

// Why plans with FP8 are not written for transformers' Trainer.
inline constexpr std::string_view kNoFp8Argument =
    "products in FP8, for which TrainingArguments have no argument (accelerate has keys)";
inline constexpr double kOffloadMargin = 0.02, kSegmentSeconds = 2e-3;

}  // namespace zeroplan
