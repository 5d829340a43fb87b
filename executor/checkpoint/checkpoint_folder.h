// Names and places of checkpoints below the folder given to --save:
//
//     DIR/checkpoints/step-00000123/rank-0000.safetensors ...   one file a shard
//                                   meta.json
//     DIR/checkpoints/latest      the name of the folder to resume from
//     DIR/checkpoints/best        with --keep-best: the one with the lowest validation loss
//     DIR/checkpoints/.lock       whose run saves here
//     DIR/checkpoints/.tmp-...    unfinished saves and deletions
//
// Saving a step a second time makes step-00000123-1, then -2, and so on: a complete checkpoint is
// never written to.
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
  bool is_whole = false;  // meta.json is sound, and its files have the sizes that it names
};
// Newest first, damaged ones last. Empty if there are none.
std::vector<CheckpointListing> ListCheckpoints(const std::filesystem::path& save_dir);

// What DIR/checkpoints/latest names; nullopt if there is no such file. Throws Error(kUsage) if it
// holds no folder name.
std::optional<std::string> ReadLatest(const std::filesystem::path& save_dir);

// The same of DIR/checkpoints/best.
std::optional<std::string> ReadBest(const std::filesystem::path& save_dir);

// Keeps other runs from saving into a folder while it lives: two would put their files into each
// other's checkpoints.
class SaveLock {
 public:
  // Makes the folder where it is missing. A process of this host that holds the lock and was killed
  // is waited for, kDyingLimit at most: a thread of it may be in the midst of an fsync, which no
  // signal ends. Throws Error(kUsage) naming the run that holds the lock,
  // Error(kRuntime) where the folder cannot be written, and Error(kUsage) where the file system has
  // no locks.
  explicit SaveLock(const std::filesystem::path& save_dir);

  static constexpr std::chrono::seconds kDyingLimit{30};

 private:
  UniqueFd file_;
};

// Whether there is anything to resume from.
bool HasCheckpoint(const std::filesystem::path& save_dir);

// Saving training state so that a crash at any instant leaves the previous or the new checkpoint to
// resume from.
//
// The order of things: files are written and synced in .tmp-step-N, the folder is synced and
// renamed to step-N, `best` (where this is it) and then `latest` are replaced by rename, and only
// then older checkpoints go. So a run that goes on from `latest` finds what was best until then,
// whatever `best` names by now.

// One rank stages; after a barrier each rank writes its file with a ShardWriter; after another the
// first rank, given what each Describe()d, commits (executor/train/group_save.h).

// Removes what interrupted saves left, and makes the folder to write to. Throws Error(kRuntime)
// naming the path and the system's reason. REQUIRES: nobody else saves into `save_dir` at the same
// time (SaveLock).
std::filesystem::path StageCheckpoint(const std::filesystem::path& save_dir, int64_t step,
                                      IoHook* hook = nullptr);
// Removes a staging folder that will not be committed, whatever other ranks still write in it: it
// loses its name first, under which they could open files.
void DiscardStaging(const std::filesystem::path& staging);
// `meta.files` lists the files in `staging`, complete and synced; serial is filled in. Returns the
// checkpoint's folder.
//
// `keep` complete checkpoints stay, the new one among them; at least 1. 2 leaves something to fall
// back to when a disk loses a file. Damaged checkpoints do not count, and are not deleted: those
// that lack files, and those in `spared`, the step folders known to be damaged. What `best` names
// stays besides. Failing to delete is a warning, not an error.
std::filesystem::path CommitCheckpoint(const std::filesystem::path& save_dir,
                                       const std::filesystem::path& staging, CheckpointMeta meta,
                                       int keep, const std::vector<std::string>& spared,
                                       IoHook* hook = nullptr);

// Has `best` name a complete checkpoint, a folder of `save_dir`.
void NameBest(const std::filesystem::path& save_dir, const std::string& folder,
              IoHook* hook = nullptr);

// Whether a folder can take what a run will save there: asked before the run, not after its last
// step.

// Makes DIR/checkpoints where it is missing, removes what interrupted saves and deletions left, and
// tries there what a save does: writing, fsync, renaming a folder and renaming over a file.
// REQUIRES: nobody saves there (SaveLock). Throws Error(kUsage) naming --save, the reason and
// the fix. Refuses the mounts of object stores too (s3fs, gcsfuse, ...): they copy what is renamed,
// so that a cut-off save could pass for a checkpoint.
void CheckSaveFolder(const std::filesystem::path& save_dir);

// The kind of object store that `folder` lies on; "" if it lies on none that is known. `mounts`: a
// file as /proc/self/mountinfo.
std::string ObjectStoreOf(const std::filesystem::path& folder,
                          const std::filesystem::path& mounts = "/proc/self/mountinfo");

struct SaveDemand {
  std::vector<uint64_t> shard_bytes;  // of one checkpoint's files
  uint64_t final_bytes = 0;           // of the weights at the end
  int64_t saves = 1;                  // that the run will make
  int keep = 2;                       // as CommitCheckpoint
  // What this host's ranks will take for swap files in `swap_dir`, which may be the same disk.
  uint64_t swap_bytes = 0;
  std::filesystem::path swap_dir;

  uint64_t checkpoint_bytes() const;  // of all its shards
};

// Bytes that the run takes at most beyond what lies there: `existing` checkpoints that are whole.
// Old ones go only after a new one is complete, and the weights come last.
uint64_t SaveBytes(const SaveDemand& demand, int existing);

// Throws Error(kUsage) with both numbers if the file system has less room, or the process may not
// write files so large (RLIMIT_FSIZE).
void CheckSaveRoom(const std::filesystem::path& save_dir, const SaveDemand& demand);

}  // namespace zeroplan
