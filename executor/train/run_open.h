// The first phases of a run: what it reads is opened, and the ranks agree that they mean the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "core/model/param_table.h"
#include "core/program/program.h"
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

// Which checkpoint --resume takes: the one that `latest` names, or, where that is damaged, the
// newest intact one.

struct ResumeChoice {
  std::unique_ptr<CheckpointSource> source;  // null: the folder holds no checkpoint
  // Names of the folders that were passed over, for CommitCheckpoint.
  std::vector<std::string> damaged;
};

// Called by all ranks; all take the same one. Its shards' data is held against the checksums first,
// each rank reading a part of the files, so that no run starts from what it cannot load: that costs
// one read of the checkpoint, shared by the ranks.
//
// A checkpoint that is passed over is a warning that says what is wrong and how many steps are
// trained again; it stays as it is. `strict`: it is an error. Throws Error(kUsage) if none is
// intact, if the model is another one, and on a rank that cannot see the folder; Error(kRuntime)
// where files cannot be looked at for a reason that is not theirs.
ResumeChoice ChooseCheckpoint(ProcessGroup& group, const std::filesystem::path& save_dir,
                              const ModelSpec& spec, std::span<const ParamTensor> table,
                              bool strict);

// What a run starts from and trains on.
struct OpenedRun {
  Program program;               // with the schedule of this run's length
  std::optional<SaveLock> lock;  // rank 0's, of the folder that it saves to
  // What --resume continues; null: nothing. Freed once it is loaded, as `weights` is.
  std::unique_ptr<CheckpointSource> checkpoint;
  std::vector<std::string> damaged;  // checkpoints that the resume passed over
  // Of options.init_from; null: none are named. With adapters: those of options.adapter, or fresh
  // ones, on that base, which a resume needs too.
  std::unique_ptr<StateSource> weights;
  std::string weights_text;  // "3 files, BF16"
  std::string base_digest;   // of the base below adapters: WeightsDigest; "": there is none
  uint64_t seed = 1;
  std::unique_ptr<const TokenDataset> data;
  std::unique_ptr<const BatchSampler> sampler;
  std::unique_ptr<const ValidationData> validation;
  int64_t steps = 0;  // of the whole run
  NamedFacts facts;   // what decides its numbers

  // Limits that every batch keeps to.
  DocumentLimits document_limits() const {
    return DocumentLimits::Either(sampler->document_limits(), validation->document_limits());
  }
};

// What of a run's start can be refused by the names and headers of its files, before data becomes
// tokens: checkpoints in the folder to save to, without --resume or of another model or seed;
// weights and adapters that do not fit the model. Nothing is kept open. Throws Error(kUsage) as
// OpenRun, which looks again and at the rest.
void LookAtStart(const ModelSpec& model, const TrainOptions& options);

// Locks and tries the folder to save to, chooses the checkpoint to continue together with the other
// ranks, and opens weights and data. Token ids outside the vocabulary are found here, each rank
// looking at its part, and not after hours. Throws Error(kUsage) for what does not fit the model or
// the checkpoint, without --resume for a folder that holds checkpoints, and as ChooseCheckpoint,
// SaveLock and CheckSaveFolder.
OpenedRun OpenRun(const Program& program, const TrainOptions& options, ProcessGroup& group);

// Throws Error(kUsage) where a rank is about to do another thing than rank 0 is, where the folder
// to save to has too little room, and where there is nothing to validate with though the run goes
// by that. Rank 0 warns of what a resume changes. Before the engine, whose own meeting of the ranks
// would not say what is wrong.
void AgreeOnRun(const OpenedRun& run, const TrainOptions& options, ProcessGroup& group);

struct EpochCount {
  double epochs = 1;           // > 0; a fraction ends within an epoch
  uint64_t train_samples = 1;  // of an epoch
  int64_t global_batch = 1;    // sequences of a step, from here on
  int64_t done = 0;            // steps before, of whatever batch
  uint64_t consumed = 0;       // samples of those
};

// The number of optimizer steps, those before included, after which each sample was trained on
// `epochs` times. Steps are whole and the order goes on from one epoch into the next, so the last
// step may take some samples of an epoch more. Throws Error(kUsage) for more than 2^31 - 1 steps.
int64_t StepsOfEpochs(const EpochCount& count);

// Fills in what a schedule leaves to the run's length: the step at which a decay ends, a warm-up's
// share.
ScheduleConfig ScheduleOfRun(ScheduleConfig schedule, int64_t steps);

// The folder of the swap file, which holds all that is offloaded to disk; "": nothing is. Throws
// Error(kUsage) where parameters and optimizer name two.
std::string SwapFolder(const ZeroConfig& zero);

}  // namespace zeroplan
