// Saving training state so that a crash at any instant leaves the previous or the new checkpoint to
// resume from.
//
// The order of things: files are written and synced in .tmp-step-N, the folder is synced and
// renamed to step-N, `latest` is replaced by rename, and only then older checkpoints go. See
// checkpoint_folder.h for the names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/program/layout.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/shard_writer.h"

namespace zeroplan {

struct CheckpointOptions {
  // Ranks of the run: so many sinks there are. At stage 0 only rank 0's takes anything.
  int world_size = 1;
  // Complete checkpoints that stay, the new one among them; at least 1. 2 leaves something to fall
  // back to when a disk loses a file. What is damaged does not count, and is not deleted.
  int keep = 2;
  // Names of step folders known to be damaged, by their data too.
  std::vector<std::string> spared;
  IoHook* hook = nullptr;
};

// For the ranks of one process, as threads. One object is one save:
//
//     CheckpointWriter writer(dir, program.layout, step, options);
//     engine.Save(writer.sinks());
//     writer.Finish(meta);
class CheckpointWriter {
 public:
  // Removes what interrupted saves left, makes the staging folder and takes the room for every
  // file. Throws Error(kRuntime) naming the path and the system's reason. REQUIRES: `layout`
  // outlives the writer; nobody else saves into `save_dir` at the same time (SaveLock).
  CheckpointWriter(const std::filesystem::path& save_dir, const ParamLayout& layout, int64_t step,
                   const CheckpointOptions& options);
  // Unfinished, it removes the staging folder: the checkpoints there were stay as they are.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // One per rank, each for one thread at a time.
  std::span<StateSink* const> sinks() const { return sinks_; }
  // Once all ranks have written everything. Returns the checkpoint's folder. On Error(kRuntime) the
  // checkpoint before is intact and still the latest, unless the error names the sync of a new
  // `latest`: then either may be.
  std::filesystem::path Finish(CheckpointMeta meta);

 private:
  std::filesystem::path save_dir_;
  CheckpointOptions options_;
  std::filesystem::path staging_;
  std::vector<std::unique_ptr<ShardWriter>> shards_;
  std::unique_ptr<StateSink> nothing_;  // of ranks without shards
  std::vector<StateSink*> sinks_;
  bool finished_ = false;
};

// The parts, for ranks that are processes (group_save.h): one rank stages; after a barrier each
// rank writes its file with a ShardWriter; after another the first rank, given what each
// Describe()d, commits.
std::filesystem::path StageCheckpoint(const std::filesystem::path& save_dir, int64_t step,
                                      IoHook* hook = nullptr);
// `meta.files` lists the files in `staging`, complete and synced; serial is filled in. Returns the
// checkpoint's folder. Older checkpoints go as CheckpointOptions says; failing to delete them is a
// warning, not an error.
std::filesystem::path CommitCheckpoint(const std::filesystem::path& save_dir,
                                       const std::filesystem::path& staging, CheckpointMeta meta,
                                       int keep, const std::vector<std::string>& spared,
                                       IoHook* hook = nullptr);

}  // namespace zeroplan
