// What runtimes have in common that train in PyTorch processes: their memory is what an allocator
// reserves, their time that of eager or compiled kernels and of a Python thread.
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

// Where a choice keeps states and parameters.
struct OffloadPlace {
  OptimizerOffload optimizer;
  OffloadDevice param = OffloadDevice::kNone;
  bool pin_memory = true;

  bool anything() const {
    return optimizer.device != OffloadDevice::kNone || param != OffloadDevice::kNone;
  }
};

// Micro-steps that are played of a step: the first, one between, the last.
inline constexpr int64_t kPlayedMicroSteps = 3;

// What is played: a model's training under one setup. 16-bit training with Adam in fp32; what
// setup.zero leaves out, or has as kAuto, is DeepSpeed's default (core/config/reader_state.h).
struct TorchPlay {
  ModelSpec model;
  TrainSetup setup;
  TorchRecipe recipe;
  const HardwareProfile* hardware = nullptr;  // whose GPU; null: not known
  int gpus_per_node = 0;                      // of the cluster; 0: all ranks are in one node
  // The allocator's limit (torch.cuda.set_per_process_memory_fraction, or the card's memory less
  // context): it empties its cache rather than exceed it. None: unlimited.
  std::optional<uint64_t> limit_bytes;
  // What is around the steps, too (TorchFootprint::around).
  bool around = false;
};

// The run of `setup` as its modules see it.
TorchRun TorchRunOf(const TrainSetup& setup, const TorchRecipe& recipe);

struct PlayedRun;  // planner/runtimes/torch_phases.h

// How much of a runtime is played, and which of ContextBytes and HostBaseBytes are its.
struct PlayedParts {
  int steps;  // until tensors and segments repeat
  int context_stage, host_stage;
};

class TorchBased : public Runtime {
 public:
  // Rank 0's memory; `timer`, if given, is played along. Throws Error(kUsage) for what is not
  // modelled, naming the field.
  TorchFootprint Play(TorchPlay play, TorchTimer* timer = nullptr) const;
  virtual const RuntimeMargins& margins() const = 0;
  // A setup that takes no more time for a micro-step, whatever else a choice does; none is known.
  virtual std::optional<TrainSetup> Least(const TrainSetup& /*setup*/) const {
    return std::nullopt;
  }

  void Refuse(const AskedOfRuntime& asked) const override;
  std::optional<SetupProblem> SequenceProblem(const ModelSpec& model,
                                              const BatchSpec& batch) const override;
  bool Takes(const JudgeInputs& inputs, const TrainSetup& setup) const override;
  std::vector<TrainSetup> Choices(const SearchInputs& inputs,
                                  const SearchSpace& space) const override;
  std::unique_ptr<ChoiceJudge> Judge(const JudgeInputs& inputs) const override;
  std::unique_ptr<ChoiceSearch> Search(SearchInputs inputs) const override;
  std::string TimeLacks(const HardwareProfile& hardware, const ClusterShape& shape) const override;
  // A choice with offload has to be faster by kOffloadMargin (search.h) to be preferred, one whose
  // reserved memory fits without its margin by kTightMargin, one that empties its cache by
  // kCacheMargin and by kSegmentSeconds for each segment that it gives back and asks for again in a
  // step (the driver waits for the GPU to free one): each may be slower than its time says. One at
  // risk is taken only where nothing else fits. All of these are cautions, not measurements.
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
  // What is not modelled, by RefuseIf.
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
  // Whether what is trained, adapters or parameters, is in fp32 where modules run, under autocast.
  virtual bool CastsTrained(const TorchPlay& /*play*/) const { return false; }
  // Whether programs train with torchao's products in 8 bits.
  virtual bool HasFloat8() const { return true; }
  void RefuseFloat8(const TorchPlay& play) const;
  // Whether its programs have DeepSpeed's Ulysses (torch_sequence.h) and TiledMLP (tiled_step.cc);
  // PyTorch's ring attention.
  virtual bool HasUlysses() const { return false; }
  virtual bool HasRing() const { return false; }
  void RefuseSequences(const TorchPlay& play) const;
  void RefuseUlysses(const TorchPlay& play) const;
  void RefuseRing(const TorchPlay& play) const;
  void RefuseTiles(const TorchPlay& play) const;
  // Of adapters, what is modelled for no runtime or not for this one.
  void RefuseAdapters(const TorchPlay& play) const;
  // All that is not modelled of `play`.
  void RefusePlay(const TorchPlay& play) const;
  // Whether the Trainer has autocast on around the model.
  virtual bool HasAutocast() const { return true; }
  // How its programs move inputs of checkpointed layers to the host.
  virtual const ActivationOffloading& Offloading() const { return kTorchtuneOffloading; }
  // Whether DeepSpeed's functions stand between the modules of compiled layers.
  virtual bool HasModuleGraphs(int /*stage*/) const { return false; }
  // Loading, saving and resuming, as far as they are known.
  virtual std::vector<AroundPeak> Around(const PlayedRun& /*run*/) const { return {}; }
  // Whether stage and offloads go together; whether there are such shard groups with them; whether
  // recompute is modelled.
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
  // Without shard groups, which the caller sets. By default nothing of ZeRO's keys is searched.
  virtual TrainSetup SetupFor(const SearchInputs& inputs, int gpus, int stage,
                              const OffloadPlace& offloads) const;
  // `setup` with each of its own settings that are searched, the preferred first.
  virtual std::vector<TrainSetup> WithSettings(const SearchInputs& /*inputs*/,
                                               const TrainSetup& setup) const {
    return {setup};
  }
  // The share of its predicted speed that a choice is taken for.
  virtual double Trust(const TrainSetup& /*setup*/) const { return 1; }
  // What is known to be less certain than the margins say; "": nothing.
  std::string Doubt(const TrainSetup& setup) const override;
  // Of a recipe that names none: "DeepSpeed's own optimizers".
  virtual std::string_view OptimizerText() const;
};

// Why transformers' Trainer is written no such plan.
inline constexpr std::string_view kNoFp8Argument =
    "products in FP8, for which TrainingArguments have no argument (accelerate has keys)";
inline constexpr double kTightMargin = 0.03, kCacheMargin = 0.05, kSegmentSeconds = 2e-3;

}  // namespace zeroplan
