// Saves of a run in one process or several, and the parts of every save, including those concurrent
// with steps (background_save.h): a folder that rank 0 stages, the shards that each process writes
// there, and rank 0's commit. All ranks call these functions in the same order; an error of one
// rank is thrown on the others too once it has told the group (SpreadFailure).
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/files.h"
#include "core/program/layout.h"
#include "executor/checkpoint/checkpoint_meta.h"
#include "executor/checkpoint/state_io.h"
#include "executor/process/process_group.h"

namespace zeroplan {

// Throws Error(kUsage) on a rank that cannot see `path`, which rank 0 has made or seen; waits a
// while for a network file system to show it.
void NeedShared(const ProcessGroup& group, const std::filesystem::path& path);

struct GroupSave {
  std::filesystem::path save_dir;  // on a disk that all ranks share
  const ParamLayout* layout = nullptr;
  int first_local_rank = 0;  // this process's ranks
  int local_rank_count = 1;
  // Checkpoints to keep, as in CommitCheckpoint.
  int keep = 2;
  std::vector<std::string> spared;
  IoHook* hook = nullptr;
};

// The number of attempts at a save that meets a TransientIoError, with growing pauses between them.
inline constexpr int kSaveAttempts = 3;
inline std::chrono::milliseconds PauseBeforeSave(int attempt) {
  return std::chrono::milliseconds(500) * (attempt - 1);
}
// Warns that step `step` is saved for the `attempt`-th time, because of `problem`.
void WarnOfNewSave(int64_t step, const std::string& problem, int attempt);

// The folder of an unfinished save, made by rank 0 and deleted with this object.
class Staging {
 public:
  explicit Staging(const GroupSave& save) : save_(save) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  const std::filesystem::path& Make(int64_t step);
  // Commits the folder as a checkpoint, once it holds the files that `meta.files` lists; waits a
  // while for a network file system to show the files of other hosts. Returns the checkpoint's
  // folder.
  std::filesystem::path Commit(const ProcessGroup& group, const CheckpointMeta& meta);

 private:
  const GroupSave& save_;
  std::filesystem::path folder_;
};

// Writes the files of this process's ranks into `staging`, and syncs them. `write` receives the
// sinks, one a local rank. Returns a description of the files, which ReadDescriptions parses. A
// TransientIoError is thrown only once `write` has returned, because within the engine it would end
// the run.
std::string WriteShardFiles(const GroupSave& save, const std::filesystem::path& staging,
                            const std::function<void(std::span<StateSink* const>)>& write);
std::vector<CheckpointFile> ReadDescriptions(const std::vector<std::string>& of_ranks);

// Writes the shards of this process's ranks to their sinks; returns the state after.
using WriteShards = std::function<StepState(std::span<StateSink* const> sinks)>;

// Rank 0 stages a checkpoint, every process writes its shards, rank 0 commits. `meta` is filled in
// by the trainer, without state and files; rank 0's counts. Returns the checkpoint's folder.
//
// After a TransientIoError of a rank all ranks start again, up to three times with a warning:
// `write` may be called again. On an error, on whatever rank, the previous checkpoint is intact and
// still the latest, unless the error names the sync of a new `latest`: then either may be.
std::filesystem::path SaveTogether(ProcessGroup& group, const GroupSave& save,
                                   const CheckpointMeta& meta, const WriteShards& write);

}  // namespace zeroplan
