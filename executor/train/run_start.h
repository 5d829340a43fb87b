// What a run starts from: the folder that it saves to, a checkpoint, weights, its seed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/program/program.h"
#include "executor/checkpoint/checkpoint_folder.h"
#include "executor/checkpoint/checkpoint_source.h"
#include "executor/checkpoint/hf_weights.h"
#include "executor/process/process_group.h"
#include "executor/train/trainer.h"

namespace zeroplan {

// Rank 0 locks and tries options.save_dir, if there is one. Throws as SaveLock and CheckSaveFolder.
std::optional<SaveLock> LockSaveFolder(const TrainOptions& options, const ProcessGroup& group);

// What --resume continues; null: nothing. All ranks call it at once, and get the same one. Names in
// `damaged` the checkpoints that were passed over. Throws Error(kUsage) without --resume for a
// folder that holds checkpoints, and as ChooseCheckpoint.
std::unique_ptr<CheckpointSource> OpenCheckpoint(const Program& program,
                                                 const TrainOptions& options, ProcessGroup& group,
                                                 std::vector<std::string>& damaged);

// The weights in options.init_from; null: none are named. Before the engine takes memory: what does
// not fit the model is found at once.
std::unique_ptr<HfWeightsSource> OpenWeights(const Program& program, const TrainOptions& options);

// The checkpoint's, if there is one. Throws Error(kUsage) if another is asked for.
uint64_t ChooseSeed(const TrainOptions& options, const CheckpointSource* checkpoint);

}  // namespace zeroplan
