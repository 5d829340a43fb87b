// Resolves the options of train to the work of a run: the model, one setup and its program.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cli/run/train/train_command.h"
#include "core/families/adapter_config.h"
#include "core/lowering/lower.h"
#include "core/program/chrome_trace.h"
#include "executor/process/process_group.h"
#include "executor/train/trainer.h"
#include "planner/plan/plan_file.h"
#include "planner/request/resolve.h"
#include "planner/runs/prediction_table.h"

namespace zeroplan {

// The work of a run, and the data by which a checkpoint identifies it.
struct TrainWork {
  ModelSpec model;
  std::string model_folder;    // --model, if that is a folder; else empty
  std::string weights_folder;  // folder of the weights that the run starts from; empty: fresh ones
  std::string base_name;       // the base's name in adapters: its published name, or its folder
  // The folder of the model's tokenizer and of the other files next to weights; empty: none.
  const std::string& companions_folder() const {
    return weights_folder.empty() ? model_folder : weights_folder;
  }
  std::string adapter;  // folder of the adapter that it continues; empty: none
  // The folder of the tokenizer for texts, which is also saved: an adapter's may have more tokens.
  std::string tokenizer_folder() const {
    return TokenizerFolder(companions_folder(), adapter).string();
  }
  TrainSetup setup;
  LowerOptions lower;
  bool async_save_if_fits = false;  // drop lower.async_save if the copy does not fit
  std::optional<PlanFile> plan;
  bool pageable = false;  // memory to be pinned is pageable: `setup` differs from the plan's
  std::optional<ProgramRecord> kept;  // lowering inputs of the checkpoint to resume
  HardwareProfile hardware;           // source of defaults and predictions
  // named or found; else the default, which may differ from the machine
  bool hardware_is_known = false;
  std::optional<uint64_t> gpu_memory_limit;  // --gpu-memory
};

// The process that resolves a run's work.
struct Resolving {
  ProcessGroup* group = nullptr;  // set in one of these ranks: all use rank 0's choice
  bool ranks_follow = false;      // the ranks that this process starts resolve, and choose, again
  // The data will settle packing or sequence length, and then the work is resolved again: nothing
  // is searched, and any choice stands for the run's.
  bool data_follows = false;
};

// The number of ranks that the options request without a launcher: on GPUs, unless --gpus sets it,
// as many as the driver shows. REQUIRES: no --plan.
int RanksAskedFor(const TrainCommand& command, Backend backend);

// All throw Error(kUsage) as train's options are resolved; completing the choice may throw
// Error(kNothingFits) (open_choice.h). `backend`: where it will run.
TrainWork ResolveWork(const TrainCommand& command, Backend backend, const Resolving& by,
                      Assumptions& assumptions);
TrainOptions ResolveTrainOptions(const TrainCommand& command, const TrainWork& work);
Program LowerWork(const TrainWork& work);

// train --plan: the settings of the plan, and the options that may be given in addition.

// The default learning rate of a run that starts from weights: that of Llama 2's fine-tuning
// (Touvron et al. 2023, section 3.1) and of most recipes that train all weights. The rate for fresh
// weights, fifty times as high, would destroy what was learned.
inline constexpr double kFineTuningRate = 2e-5;
// The same of adapters: QLoRA's for 7B and 13B (Dettmers et al. 2023, table 9) and PEFT's
// examples', with the schedule of most recipes.
inline constexpr double kAdapterRate = 2e-4;
inline constexpr RunScheduleConfig kAdapterSchedule = {.shape = DecayShape::kCosine,
                                                       .warmup_share = 0.03};

// The difference between this machine, with `gpus` GPUs as `here` describes, and the plan's, in a
// sentence; "" if there is none.
std::string MachineDiffers(const PlanFile& plan, const HardwareProfile& here, int gpus);

// The difference between the step time of `here`, predicted with this machine's figures, and the
// plan's, in sentences; "" if it is less than a tenth or either has no time.
std::string StepDiffers(const PlanFile& plan, const RunPrediction& here);

// The profile of the run's announced figures: the plan's if known.
HardwareProfile PredictingHardware(const TrainWork& work);

// Reads the plan `file`. Throws Error(kUsage) for --gpus that differs, and for --model or --params
// that differ in any dimension.
PlanFile ResolvePlan(const std::string& file, const Request& options, Assumptions& assumptions);

// The prediction that `train --trace` shows next to the measurements.

// Adds the predicted step: on GPUs with the run's hardware profile, `ranks_per_host` ranks on one
// host; for a plan for GPUs rehearsed on the CPU with the plan's. If there is no prediction, adds
// nothing and prints the reason. `program` is the run's, and must outlive it.
std::function<void(ChromeTrace&)> PredictionForTrace(const TrainWork& work, const Program& program,
                                                     Backend backend, int ranks_per_host);

}  // namespace zeroplan
