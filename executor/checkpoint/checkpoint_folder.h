// Names and places of checkpoints below the folder given to --save:
//
//     DIR/checkpoints/step-00000123/rank-0000.safetensors ...   one file a shard
//                                   meta.json
//     DIR/checkpoints/latest      the name of the folder to resume from
//     DIR/checkpoints/best        with --keep-best: the one with the lowest validation loss
//     DIR/checkpoints/.lock       whose run saves here
//     DIR/checkpoints/.tmp-...    unfinished saves and deletions
//
// Saving a step a second time creates step-00000123-1, then -2, and so on, because a complete
// checkpoint is never written to.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files.h"
#include "executor/checkpoint/checkpoint_meta.h"

namespace zeroplan {

inline constexpr std::string_view kStagingPrefix = ".tmp-";

std::filesystem::path CheckpointsFolder(const std::filesystem::path& save_dir);
// "step-00000123".
std::string StepFolderName(int64_t step);
// "step-00000123" or "step-00000123-1".
bool IsStepFolderName(std::string_view name);
// "rank-0007.safetensors".
std::string ShardFileName(int rank);

// A complete checkpoint: its folder has been renamed to its final name.
struct CheckpointListing {
  std::filesystem::path folder;
  uint64_t serial = 0;    // 0 if its meta.json cannot be read
  bool is_whole = false;  // meta.json is valid, and the files have the sizes that it lists
};
// Newest first, damaged ones last. Empty if there are none.
std::vector<CheckpointListing> ListCheckpoints(const std::filesystem::path& save_dir);

// The folder that DIR/checkpoints/latest names; nullopt if there is no such file. Throws
// Error(kUsage) if the file holds no folder name.
std::optional<std::string> ReadLatest(const std::filesystem::path& save_dir);

// The same for DIR/checkpoints/best.
std::optional<std::string> ReadBest(const std::filesystem::path& save_dir);

// While it lives, keeps other runs from saving into a folder. Two runs would put files into each
// other's checkpoints.
class SaveLock {
 public:
  // Creates the folder if it is missing. If a killed process of this host holds the lock, waits for
  // it up to kDyingLimit, because one of its threads may be in an fsync, which no signal
  // interrupts. Throws Error(kUsage) that names the run that holds the lock, Error(kRuntime) if the
  // folder cannot be written, and Error(kUsage) if the file system has no locks.
  explicit SaveLock(const std::filesystem::path& save_dir);

  static constexpr std::chrono::seconds kDyingLimit{30};

 private:
  UniqueFd file_;
};

// True if there is a checkpoint to resume from.
bool HasCheckpoint(const std::filesystem::path& save_dir);

// Below: saves training state so that a crash at any instant leaves the previous or the new
// checkpoint to resume from.
//
// The order: files are written and synced in .tmp-step-N; the folder is synced and renamed to
// step-N; `best` (if this checkpoint is the best) and then `latest` are replaced by rename; only
// then are older checkpoints deleted. So a run that resumes from `latest` finds the checkpoint that
// was best at that time, whatever `best` names by now.

// One rank stages. After a barrier each rank writes its file with a ShardWriter. After another
// barrier the first rank commits, given each rank's ShardWriter::Describe()
// (executor/train/group_save.h).

// Removes the leftovers of interrupted saves, and creates the folder to write to. Throws
// Error(kRuntime) that names the path and the system's reason. REQUIRES: nobody else saves into
// `save_dir` at the same time (SaveLock).
std::filesystem::path StageCheckpoint(const std::filesystem::path& save_dir, int64_t step,
                                      IoHook* hook = nullptr);
// Removes a staging folder that will not be committed, even if other ranks still write in it. It is
// renamed first, so that they can open no more files in it.
void DiscardStaging(const std::filesystem::path& staging);
// Commits `staging` and returns the checkpoint's folder. `meta.files` lists the files in `staging`,
// which are complete and synced. Fills in the serial.
//
// Keeps `keep` complete checkpoints, at least 1, including the new one; with 2 there is another one
// if a disk loses a file. Damaged checkpoints do not count and are not deleted: those that lack
// files, and those in `spared`, the step folders known to be damaged. The checkpoint that `best`
// names is kept in addition. A failure to delete is a warning, not an error.
std::filesystem::path CommitCheckpoint(const std::filesystem::path& save_dir,
                                       const std::filesystem::path& staging, CheckpointMeta meta,
                                       int keep, const std::vector<std::string>& spared,
                                       IoHook* hook = nullptr);

// Makes `best` name the complete checkpoint `folder` of `save_dir`.
void NameBest(const std::filesystem::path& save_dir, const std::string& folder,
              IoHook* hook = nullptr);

// Below: checks before a run, not after its last step, that a folder can hold what the run will
// save.

// Creates DIR/checkpoints if it is missing, removes the leftovers of interrupted saves and
// deletions, and tries the operations of a save there: writing, fsync, renaming a folder and
// renaming over a file. REQUIRES: nobody saves there (SaveLock). Throws Error(kUsage) that names
// --save, the reason and the fix. Also refuses mounts of object stores (s3fs, gcsfuse, ...): they
// implement rename as a copy, so an interrupted save could pass for a checkpoint.
void CheckSaveFolder(const std::filesystem::path& save_dir);

// The kind of object store that `folder` is on; "" if it is on no known one. `mounts`: a file in
// the format of /proc/self/mountinfo.
std::string ObjectStoreOf(const std::filesystem::path& folder,
                          const std::filesystem::path& mounts = "/proc/self/mountinfo");

struct SaveDemand {
  std::vector<uint64_t> shard_bytes;  // bytes of one checkpoint's files
  uint64_t final_bytes = 0;           // bytes of the weights that the run writes at its end
  int64_t saves = 1;                  // number of saves of the run
  int keep = 2;                       // as CommitCheckpoint
  // The bytes of swap files that this host's ranks will create in `swap_dir`, which may be on the
  // same disk.
  uint64_t swap_bytes = 0;
  std::filesystem::path swap_dir;

  uint64_t checkpoint_bytes() const;  // the sum over all shards
};

// The most bytes that the run adds to a folder with `existing` complete checkpoints. Old
// checkpoints are deleted only after a new one is complete, and the weights are written last.
uint64_t SaveBytes(const SaveDemand& demand, int existing);

// Throws Error(kUsage) with both numbers if the file system has less room, or if the process may
// not write files of that size (RLIMIT_FSIZE).
void CheckSaveRoom(const std::filesystem::path& save_dir, const SaveDemand& demand);

}  // namespace zeroplan
