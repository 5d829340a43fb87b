// Whether a folder can take what a run will save there: asked before the run, not after its last
// step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace zeroplan {

// Makes DIR/checkpoints where it is missing and tries there what a save does: writing, fsync,
// renaming a folder and renaming over a file. Throws Error(kUsage) naming --save, the reason and
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
