// From the options of train to what is run: the model, one setup and its program.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "cli/run/train/train_command.h"
#include "core/config/packing.h"
#include "core/families/adapter_config.h"
#include "core/lowering/lower.h"
#include "core/program/chrome_trace.h"
#include "executor/process/process_group.h"
#include "executor/train/trainer.h"
#include "planner/plan/plan_file.h"
#include "planner/request/resolve.h"
#include "planner/runs/prediction_table.h"

namespace zeroplan {

// What is run, and what a checkpoint remembers it by.
struct TrainWork {
  ModelSpec model;
  std::string model_folder;    // --model, if that is a folder; else empty
  std::string weights_folder;  // whose weights the run starts from; empty: fresh ones
  std::string base_name;       // what adapters of it name: as it is published, or its folder
  // Whose tokenizer, and what else lies beside weights, is the model's; empty: none.
  const std::string& companions_folder() const {
    return weights_folder.empty() ? model_folder : weights_folder;
  }
  std::string adapter;  // whose folder it goes on from; empty: none
  // Whose tokenizer texts are cut by, and goes along: an adapter's may have more tokens.
  std::string tokenizer_folder() const {
    return TokenizerFolder(companions_folder(), adapter).string();
  }
  TrainSetup setup;
  LowerOptions lower;
  bool async_save_if_fits = false;  // lower.async_save is to go where the copy finds no room
  std::optional<PlanFile> plan;
  bool pageable = false;  // what was to be pinned is not: `setup` is no longer the plan's
  std::optional<ProgramRecord> kept;  // what the checkpoint to resume was run with
  HardwareProfile hardware;           // what defaults and predictions are taken from
  bool hardware_is_known = false;  // named or found; else the default, which may be another machine
  std::optional<uint64_t> gpu_memory_limit;  // --gpu-memory
};

// Who resolves a run's work.
struct Resolving {
  ProcessGroup* group = nullptr;  // one of these ranks: all take what rank 0 chooses
  bool ranks_follow = false;      // ranks that this process starts resolve, and choose, anew
};

// Ranks that the options ask for where no launcher started any: on GPUs, unless --gpus says, as
// many as the driver shows; REQUIRES: no --plan.
int RanksAskedFor(const TrainCommand& command, Backend backend);

// All throw Error(kUsage) as train's options are resolved, and the choice of what they leave open
// Error(kNothingFits) (open_choice.h). `backend` is where it will run.
TrainWork ResolveWork(const TrainCommand& command, Backend backend, const Resolving& by,
                      Assumptions& assumptions);
TrainOptions ResolveTrainOptions(const TrainCommand& command, const TrainWork& work);
Program LowerWork(const TrainWork& work);

// train --plan: what the plan decides, and what may stand beside it on the command line.

// The learning rate of a run that starts from weights, where nobody says: that of Llama 2's
// fine-tuning (Touvron et al. 2023, section 3.1) and of most recipes that train all weights. The
// rate for fresh weights, fifty times as much, undoes what was learned.
inline constexpr double kFineTuningRate = 2e-5;

// In what the machine, with `gpus` GPUs as `here` describes, is another than the plan was made for,
// in a sentence; "" where it is the same.
std::string MachineDiffers(const PlanFile& plan, const HardwareProfile& here, int gpus);

// That a step takes another time by `here`, which is predicted with this machine's figures, than by
// the plan, in sentences; "" where they differ by less than a tenth or either has no time.
std::string StepDiffers(const PlanFile& plan, const RunPrediction& here);

// The profile that the run's announced figures are of: the plan's where that is known.
HardwareProfile PredictingHardware(const TrainWork& work);

// Reads the plan `file`. Throws Error(kUsage) for --gpus that differs, and for --model or --params
// that differ in any dimension.
PlanFile ResolvePlan(const std::string& file, const Request& options, Assumptions& assumptions);

// How train packs documents: what --packing, the plan and the data come to.

// Throws Error(kUsage) for what --packing asks of a plan that cannot have it.
void CheckPackingAsked(const TrainCommand& command, const TrainWork& work);

// What the run does, and work.lower with it. What was not asked for is --packing documents where
// `data` says which tokens count in the loss, as conversations do, and stream elsewhere; off for
// conversations where attention within documents would run on a GPU's plain kernels, or where a
// plan has no borders of documents. A line says so.
// REQUIRES: CheckPackingAsked passed.
Packing SettlePacking(const TrainCommand& command, Backend backend,
                      std::span<const std::string> data, TrainWork& work);

// What `train --trace` shows beside what was measured.

// Adds the step as predicted: on GPUs with the run's hardware profile, of which one host has
// `ranks_per_host` ranks; where a plan for GPUs is rehearsed on the CPU with the plan's. Nothing,
// and a line that says why, where nothing is predicted. `program` is the run's, and outlives it.
std::function<void(ChromeTrace&)> PredictionForTrace(const TrainWork& work, const Program& program,
                                                     Backend backend, int ranks_per_host);

}  // namespace zeroplan
