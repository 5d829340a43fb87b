// The first phases of a run: opening its inputs, and the ranks' agreement about them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "core/program/program.h"
#include "core/settings/zero_config.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/process/process_group.h"
#include "executor/train/run_agreement.h"
#include "executor/train/trainer.h"
#include "executor/train/validation.h"
#include "text/files/token_dataset.h"
#include "text/sequences/batch_sampler.h"

namespace zeroplan {

// The checkpoint that --resume uses: the one that `latest` names, or, if that is damaged, the
// newest intact one.

struct ResumeChoice {
  std::unique_ptr<CheckpointSource> source;  // null: the folder holds no checkpoint
  // Names of the damaged folders that were skipped, for CommitCheckpoint.
  std::vector<std::string> damaged;
};

// Called by all ranks; all choose the same checkpoint. Verifies its shards against the checksums
// first, each rank a part of the files, so that no run starts from a checkpoint that it cannot
// load: that costs one read of the checkpoint, shared by the ranks.
//
// A skipped checkpoint causes a warning with the damage and the number of steps to repeat; it stays
// unchanged. `strict`: it is an error. Throws Error(kUsage) if none is intact, if the model is
// another one, and on a rank that cannot see the folder; Error(kRuntime) if files cannot be
// examined for external reasons.
ResumeChoice ChooseCheckpoint(ProcessGroup& group, const std::filesystem::path& save_dir,
                              const ModelSpec& spec, std::span<const ParamTensor> table,
                              bool strict);

// The inputs of a run.
struct OpenedRun {
  Program program;               // includes the schedule of this run's length
  std::optional<SaveLock> lock;  // rank 0's, of the folder that it saves to
  // The checkpoint that --resume continues; null: none. Freed once it is loaded, like `weights`.
  std::unique_ptr<CheckpointSource> checkpoint;
  std::vector<std::string> damaged;  // damaged checkpoints that the resume skipped
  // The weights of options.init_from; null: none are named. With adapters: those of
  // options.adapter, or fresh ones, on that base, which a resume needs too.
  std::unique_ptr<StateSource> weights;
  std::string weights_text;  // "3 files, BF16"
  std::string base_digest;   // WeightsDigest of the base below adapters; "": there is none
  uint64_t seed = 1;
  std::unique_ptr<const TokenDataset> data;
  std::unique_ptr<const BatchSampler> sampler;
  std::unique_ptr<const ValidationData> validation;
  int64_t steps = 0;  // the whole run's
  NamedFacts facts;   // the facts that determine its numbers

  // Limits that every batch keeps.
  DocumentLimits document_limits() const {
    return DocumentLimits::Either(sampler->document_limits(), validation->document_limits());
  }
};

// Refuses problems of a run's start that the names and headers of its files show, before data
// becomes tokens: checkpoints in the folder to save to, without --resume or of another model or
// seed; weights and adapters that do not fit the model. Keeps nothing open. Throws Error(kUsage) as
// OpenRun, which checks again, and the rest too.
void LookAtStart(const ModelSpec& model, const TrainOptions& options);

// Locks and tests the folder to save to, chooses the checkpoint to continue together with the other
// ranks, and opens weights and data. Finds token ids outside the vocabulary here, each rank in its
// part, and not after hours. Throws Error(kUsage) for inputs that do not fit the model or the
// checkpoint, without --resume for a folder that holds checkpoints, and as ChooseCheckpoint,
// SaveLock and CheckSaveFolder.
OpenedRun OpenRun(const Program& program, const TrainOptions& options, ProcessGroup& group);

// Throws Error(kUsage) if a rank's run differs from rank 0's, if the folder to save to has too
// little room, and if the run depends on validation without validation data. Rank 0 warns of
// changes by a resume. Called before the engine is made, whose own meeting of the ranks would not
// report the cause.
void AgreeOnRun(const OpenedRun& run, const TrainOptions& options, ProcessGroup& group);

struct EpochCount {
  double epochs = 1;           // > 0; a fraction ends within an epoch
  uint64_t train_samples = 1;  // samples of an epoch
  int64_t global_batch = 1;    // sequences of a step, from here on
  int64_t done = 0;            // earlier steps, of any batch
  uint64_t consumed = 0;       // samples consumed by those steps
};

// The number of optimizer steps, earlier ones included, after which each sample was trained on
// `epochs` times. Steps are whole and the order continues from one epoch into the next, so the last
// step may include some samples of another epoch. Throws Error(kUsage) for more than 2^31 - 1
// steps.
int64_t StepsOfEpochs(const EpochCount& count);

// Fills in the parts of a schedule that depend on the run's length: the step at which a decay ends,
// a warm-up's share.
ScheduleConfig ScheduleOfRun(ScheduleConfig schedule, int64_t steps);

// The folder of the swap file, which holds all state offloaded to disk; "": none. Throws
// Error(kUsage) if parameters and optimizer name different folders.
std::string SwapFolder(const ZeroConfig& zero);

}  // namespace zeroplan
